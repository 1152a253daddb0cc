"""Kernels of a graph are compiled ahead: the very ones, with the very arguments, that a call of the graph launches."""

import logging
import sys
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedsmoo.operators.graph import ahead
from fedsmoo.operators.trace import called, traced

pytest.importorskip("triton")
CLIENTS, BATCH, SIDE = 2, 3, 8


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the kernels' side of operators; nothing is run."""
    from fedsmoo.kernels import place, runtime  # noqa: F401
    from fedsmoo.kernels.conv import choose  # noqa: F401
    from fedsmoo.kernels.norms import layer

    for name, module in list(sys.modules.items()):
        if name.startswith("fedsmoo.operators") and hasattr(module, "by_kernels"):
            monkeypatch.setattr(module, "by_kernels", lambda x: x.dtype == torch.float32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setitem(layer.TILES, 8, layer.plain_tile(8))


def gradient(module):
    """Return a flat gradient of C clients, and arguments."""
    parts = dict(module.named_parameters())
    sizes = [p.numel() for p in parts.values()]

    def loss(parts, x, y):
        return F.cross_entropy(functional_call(module, parts, (x,)), y)

    def flat(w, x, y):
        given = {n: v.view(CLIENTS, *p.shape) for (n, p), v in zip(parts.items(), w.split(sizes, 1), strict=True)}
        grads, losses = vmap(grad_and_value(loss))(given, x, y)
        return torch.cat([g.reshape(CLIENTS, -1) for g in grads.values()], -1), losses

    x, y = torch.randn(CLIENTS, BATCH, 3, SIDE, SIDE), torch.randint(5, (CLIENTS, BATCH))
    return flat, (0.1 * torch.randn(CLIENTS, sum(sizes)), x, y)


def network():
    norm = [nn.GroupNorm(2, 8), nn.ReLU()]
    body = [nn.Conv2d(3, 8, 3, 1, 1), *norm, nn.Conv2d(8, 8, 3, 1, 1), *norm, nn.Conv2d(8, 16, 3, 2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def groups():
    """Groups of one channel, of one and two outputs, and of so many that they take the place of clients."""
    body = [nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 5, 1, 2, groups=16), nn.ReLU()]
    body += [nn.Conv2d(16, 16, 3, 2, 1, groups=2, bias=False), nn.Conv2d(16, 32, 3, 1, 1, groups=16)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))


def rows():
    """LayerNorms of tokens."""
    body = [nn.Conv2d(3, 16, 4, 4), nn.Flatten(2), nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU()]
    return nn.Sequential(*body, nn.LayerNorm(8), nn.Flatten(), nn.Linear(128, 5))


def told(launch):
    """Return what Triton chooses a compiled kernel by, and more: all sizes, types and alignments."""
    kernel, grid, _, meta = launch

    def plain(v):
        v = getattr(v, "base", v)
        if isinstance(v, int) and v > 2**31:  # an address
            return v % 16
        return (v.dtype, *v.shape, *v.stride(), v.data_ptr() % 16) if isinstance(v, torch.Tensor) else v

    return kernel.__name__, grid, tuple(sorted((n, str(plain(v))) for n, v in meta.items()))


@pytest.mark.parametrize(("make", "least"), [(network, 13), (groups, 13), (rows, 6)])
def test_all_kernels_of_a_graph_are_compiled_ahead(make, least, as_on_a_gpu, monkeypatch):
    from fedsmoo.kernels.runtime import noting

    noted = []

    @contextmanager
    def instead(threads):
        assert threads == 2
        with noting() as found:
            yield
        noted.extend(found)

    monkeypatch.setattr(ahead, "compiling", instead)
    monkeypatch.setattr(ahead, "interpreted", lambda: False)
    flat, given = gradient(make())
    graph = traced(flat, *given)
    ahead.compile_ahead(graph, threads=2)
    with noting() as launched:
        graph(*given)
    assert {told(v) for v in noted} == {told(v) for v in launched}
    assert len(noted) >= least
    # Weight gradients are computed where what they read is at hand.
    names = [n.split(".")[1] for n in called(graph)]
    places = {end: [i for i, n in enumerate(names) if n.endswith(end)] for end in ("_weight_parts", "_data")}
    assert make is rows or places["_weight_parts"][0] < places["_data"][-1]
    assert names.count("layer_norm_backward") == (2 if make is rows else 0)


def test_a_kernel_that_does_not_compile_leaves_triton_as_it_was():
    from triton.runtime._async_compile import active_mode

    from fedsmoo.kernels.runtime import compiling

    with pytest.raises(ZeroDivisionError), compiling(1):
        active_mode.get().submit("kernel", lambda: 1 / 0, lambda kernel: None)
    assert active_mode.get() is None
    with compiling(1):
        assert active_mode.get() is not None


def test_views_of_a_graph_are_few_and_change_nothing(monkeypatch):
    from fedsmoo.operators import trace

    torch.manual_seed(0)
    flat, given = gradient(network().double())
    given = tuple(v.double() if v.is_floating_point() else v for v in given)
    short = traced(flat, *given)
    monkeypatch.setattr(trace, "shorten_views", lambda graph: None)
    long = traced(flat, *given)
    assert len(called(short)) < 0.7 * len(called(long))
    work = [[c for c in called(g) if "fedsmoo" in c] for g in (short, long)]
    assert work[0] == work[1]
    for a, b in zip(short(*given), long(*given), strict=True):
        assert torch.equal(a, b)


class Residual(nn.Sequential):
    def forward(self, x):
        return torch.relu(super().forward(x) + x)


def test_operators_are_known_to_the_compiler_before_it_writes_down_all_they_depend_on(monkeypatch, caplog):
    import torch._inductor
    from torch._inductor import graph, ir
    from torch._inductor.lowering import _maybe_layout_constraints, constrain_to_fake_tensors, lowerings

    blocks = [Residual(nn.Conv2d(8, 8, 3, 1, 1), nn.GroupNorm(2, 8)) for _ in range(4)]
    flat, given = gradient(
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    )
    network = traced(flat, *given)
    ours = {n.target for n in network.graph.nodes if getattr(n.target, "namespace", "") == "fedsmoo"}
    for operator in ours:  # as in a new process
        monkeypatch.delitem(lowerings, operator, raising=False)
        monkeypatch.delitem(_maybe_layout_constraints, operator, raising=False)
    ahead.register_operators(network)
    assert len(ours) > 5
    assert ours <= set(lowerings)
    # Strides of what they are given are those of the trace, as the compiler would have it for operators it meets.
    assert {_maybe_layout_constraints[operator] for operator in ours} == {constrain_to_fake_tensors}

    written = 0
    helper = ir.IRNode.str_helper

    def counted(*args, **kwargs):
        nonlocal written
        written += 1
        # Of an operator unknown, thousands: each text holds those of all inputs, once for every path to them.
        assert written < len(network.graph.nodes)
        return helper(*args, **kwargs)

    def lowered(*_):
        raise InterruptedError("no code is needed")

    monkeypatch.setattr(ir.IRNode, "str_helper", counted)
    monkeypatch.setattr(graph.GraphLowering, "compile_to_module", lowered)
    monkeypatch.setattr(graph.log, "handlers", [caplog.handler])  # newer releases write only what is logged
    with (
        caplog.at_level(logging.INFO, logger=graph.log.name),
        pytest.raises(Exception, match="no code is needed"),
    ):
        torch._inductor.compile(network, list(given))
    assert "fallback for:\n  target: fedsmoo" not in caplog.text
