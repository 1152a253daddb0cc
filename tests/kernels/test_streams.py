"""Fork and join of side streams, without a device: who waits for whom, in order; and that this orders all launches of
gradients that touch the same memory."""

from contextlib import contextmanager, nullcontext
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from fedsmoo.kernels.streams import SideStream


@pytest.fixture
def waits(monkeypatch):
    """What streams wait for, as pairs of names; the current stream is ``main``."""
    seen = []

    def stream(name):
        return SimpleNamespace(name=name, device="cuda:0", wait_stream=lambda other: seen.append((name, other.name)))

    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream("main"))
    monkeypatch.setattr(torch.cuda, "stream", lambda other: nullcontext())
    return seen


def test_a_stream_waits_for_what_was_given_before_and_is_waited_for_once(waits):
    side = SideStream(torch.device("cuda"), True)
    side.join()  # nothing was begun: a captured graph has no such stream
    assert waits == []
    with side.beside():
        pass
    with side.beside():
        pass
    side.join()
    side.join()
    assert waits == [("side", "main"), ("side", "main"), ("main", "side")]


@pytest.mark.parametrize(("device", "apart"), [("cpu", True), ("cuda", False)])
def test_without_a_stream_of_its_own_all_is_in_order(waits, device, apart):
    side = SideStream(torch.device(device), apart)
    with side.beside():
        pass
    side.join()
    assert waits == []


# Which arguments a launch writes, and which it was given and does not read.
WRITES = {
    "stem_forward_kernel": lambda m: {"xhat", "rstd", "pooled", "taken"},
    "conv_forward_kernel": lambda m: {"out", *(("xhat", "rstd") if m["SAVE"] else ())},
    "head_norm_kernel": lambda m: {"loss", "dlogits", "dz", "dy", "part"},
    "head_weight_kernel": lambda m: {"total_loss", "grad"},
    "conv_backward_kernel": lambda m: {"out", *(("part",) if m["NORM"] else ()), *(("dz",) if m["KEEP"] else ())},
    "norm_backward_kernel": lambda m: {"dy", "part", *(("dz",) if m["KEEP"] else ())},
    "conv_weight_kernel": lambda m: {"out"},
    "stem_weight_boxes_kernel": lambda m: {"out"},
    "stem_weight_kernel": lambda m: {"out"},
    "sum_splits_kernel": lambda m: {"grad"},
    "sum_parts_kernel": lambda m: {"grad"},
    "pool_backward_kernel": lambda m: {"dy", "part"},
}
LAYER = ("act", "xhat", "rstd", "dz", "part", "p")  # what a norm's backward pass takes
UNREAD = {
    "conv_forward_kernel": lambda m: {
        *(() if m["RESIDUAL"] else ("residual",)), *(() if m["SAVE"] else ("xhat", "rstd")),
    },
    "conv_backward_kernel": lambda m: {
        "dz", *(() if m["ADD"] else ("add",)), *(() if m["DOWN"] else ("dy_down",)),
        *(() if m["NORM"] else LAYER),
    },
    "norm_backward_kernel": lambda m: {*(() if m["RELU"] else ("act",)), "dz"},
    "pool_backward_kernel": lambda m: {"dz"},
}  # fmt: skip


def span(gradient, kernel, name, m):
    """The numbers of a client's row that a launch touches, where rows are shared; else all."""
    if name == "out" and "weight" in kernel:
        return m["out_off"], m["out_off"] + m["TAPS"] ** 2 * m["CIN"] * m["COUT"]
    if name == "part" and kernel != "sum_parts_kernel":
        unit = next(u for u in gradient.buffers.units() if u.part_off == m["part_off"])
        return unit.part_off, unit.part_off + 2 * unit.part_tiles * unit.conv.outside
    if name == "grad" and kernel == "sum_splits_kernel":
        return m["grad_off"], m["grad_off"] + m["count"]
    if name == "grad" and kernel == "head_weight_kernel":
        return m["grad_off"], m["grad_off"] + 513 * m["classes"]
    if name == "grad" and kernel == "sum_parts_kernel":
        return 0, gradient.layout.offsets["fc.weight"] - gradient.fine
    return 0, float("inf")


def storage(value):
    value = getattr(value, "base", value)  # what boxes are of
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else None


@pytest.fixture(params=[True, False], ids=["boxes", "pointers"])
def events(request, device, monkeypatch):
    """What three gradients give to the streams, in order: waits, and launches with the memory that they touch.

    The steps of a method with two gradients: each has buffers of its own for its result, which a pass reads before it
    writes the weights.
    """
    if device != "cpu":
        pytest.skip("the launches are only noted")
    from fedsmoo.kernels.resnet18 import conv, conv_weight, head, norm, pool, stem
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient
    from fedsmoo.kernels.resnet18.shapes import STORED

    given, now = [], ["main"]

    @contextmanager
    def on(stream):
        now.append(stream.name)
        yield
        now.pop()

    def stream(name):
        return SimpleNamespace(name=name, device="cpu", wait_stream=lambda other: given.append((name, other.name)))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream(now[-1]))
    monkeypatch.setattr(torch.cuda, "stream", on)
    gradient = ResNet18Gradient(2, 8, 10, "cpu", "bf16", boxes=request.param)
    for name in ("chain", "side", "aside"):
        getattr(gradient, name).stream = stream(name)

    def note(kernel, grid, **m):
        kernel = kernel.__name__
        writes = WRITES[kernel](m)
        unread = UNREAD[kernel](m) - writes if kernel in UNREAD else set()
        touched = [(storage(v), *span(gradient, kernel, k, m), k in writes) for k, v in m.items() if k not in unread]
        given.append((now[-1], kernel, [t for t in touched if t[0] is not None]))

    for module in (conv, conv_weight, head, norm, pool, stem):
        monkeypatch.setattr(module, "launch", note)
    w = gradient.weights(torch.zeros(2, gradient.layout.size))
    images, labels = torch.zeros(2, 8, *STORED, dtype=torch.bfloat16), torch.zeros(2, 8, dtype=torch.int64)
    into = [gradient.output(torch.zeros_like(w.working)) for _ in range(2)]
    for out in (*into, into[0]):
        gradient(w, images, labels, torch.zeros(2, 8), out)
        read = [(storage(t), 0, float("inf"), False) for t in (out.coarse, out.fine, out.loss)]
        given.append(("main", "pass", read + [(storage(t), 0, float("inf"), True) for t in w]))
    return given


def conflicts(launches):
    """Pairs of launches that touch the same memory, one of them writing."""
    for j, (*_, later) in enumerate(launches):
        for i, (*_, earlier) in enumerate(launches[:j]):
            if any(a[0] == b[0] and (a[3] or b[3]) and a[1] < b[2] and b[1] < a[2] for a, b in product(earlier, later)):
                yield i, j


def unordered(events, pairs, without=None):
    """Which of the pairs are in no order, by the streams' own order and their waits; one of the events left out."""
    done, before = {}, []  # what a stream has behind it, as a set of bits, now and at each launch
    for at, (stream, *what) in enumerate(events):
        if len(what) == 2:
            before.append(done.get(stream, 0))
            done[stream] = before[-1] | 1 << (len(before) - 1)
        elif at != without:
            done[stream] = done.get(stream, 0) | done.get(what[0], 0)
    return [(i, j) for i, j in pairs if not before[j] >> i & 1]


def test_launches_that_touch_the_same_memory_are_in_order_and_every_wait_is_needed_for_it(events):
    launches = [e for e in events if len(e) == 3]
    pairs = list(conflicts(launches))
    assert len(pairs) > 1000
    assert not [(launches[i][:2], launches[j][:2]) for i, j in unordered(events, pairs)]
    waits = [at for at, e in enumerate(events) if len(e) == 2]
    second = waits[len(waits) // 3 : 2 * len(waits) // 3]  # of the gradient that has others before and behind it
    joins = [events[at] for at in second if events[at][0] == "main" or events[at][1].endswith("side")]
    assert joins == [("chain", "side")] * 3 + [("chain", "aside")] * 4 + [("chain", "side"), ("main", "chain")]
    assert not [events[at] for at in second if not unordered(events, pairs, without=at)]
