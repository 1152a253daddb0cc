"""Modules nobody prepared, as graphs of operators with a client axis: numbers of PyTorch's own, client by client."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional as F

from fedsmoo.engines.oracles.products import WHOLE
from fedsmoo.operators.functional import conv_transpose2d
from fedsmoo.operators.graph.views import value
from fedsmoo.operators.layers import Instead
from fedsmoo.operators.norm import norm
from fedsmoo.operators.rules import client_rules
from fedsmoo.operators.trace import called, traced

CLIENTS, BATCH = 3, 4


class Block(nn.Module):
    """A block of a residual network."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.Conv2d(outside, outside, 3, 1, 1),
        )
        self.norms = nn.ModuleList(nn.GroupNorm(2, outside) for _ in range(2))
        self.short = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x):
        return F.relu(self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))) + self.short(x))


def attending():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), Swap(), layer, nn.Flatten(), nn.Linear(32, 5))


class Swap(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def chain(*layers):
    return lambda: nn.Sequential(*(layer() for layer in layers), nn.Flatten(), nn.LazyLinear(5))


def conv(*sizes, **more):
    return lambda: nn.Conv2d(*sizes, **more)


# a module, the side of its images, and how often it calls which of our operators
CONVS = {"patches": 2, "conv": 2, "conv_data": 1, "conv_weight": 2}  # of few channels, for both passes once
POOLS = {"pool": 1, "pool_backward": 1}
STEM = {"patches": 1, "conv": 1, "conv_weight": 1}
GROUPED = {"grouped": 1, "grouped_data": 1, "grouped_weight": 1}
MODULES = {
    "a CNN": (chain(conv(3, 4, 5), nn.ReLU, lambda: nn.MaxPool2d(2), conv(4, 6, 3)), 12, CONVS | POOLS),
    "pools that overlap, behind a norm and alone": (
        chain(
            conv(3, 4, 3),
            lambda: nn.GroupNorm(2, 4),
            nn.ReLU,
            lambda: nn.MaxPool2d(3, 2, 1),
            conv(4, 6, 3, 1, 1),
            lambda: nn.MaxPool2d((3, 2), (2, 3), (1, 0), ceil_mode=True),
        ),
        13,
        CONVS | {"norm": 1, "norm_backward": 1, "pool": 2, "pool_backward": 2},
    ),
    "dilated windows, which stay PyTorch's": (chain(conv(3, 4, 3), lambda: nn.MaxPool2d(2, 2, 0, 2)), 9, STEM),
    "a residual network": (
        chain(conv(3, 8, 3, 1, 1), lambda: Block(8, 8, 1), lambda: Block(8, 12, 2), lambda: nn.AdaptiveAvgPool2d(1)),
        8,
        {"patches": 1, "conv": 7, "conv_data": 6, "conv_weight": 7, "norm": 4, "norm_backward": 4},
    ),
    "odd strides, paddings and dilations": (
        chain(conv(3, 5, (3, 2), (2, 3), (0, 2)), conv(5, 4, 3, padding=2, dilation=2)),
        11,
        CONVS,
    ),
    "a transposed one": (chain(conv(3, 4, 3, 2), lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1)), 9, CONVS),
    "groups of few channels": (chain(conv(3, 6, 1), conv(6, 12, 3, 2, 2, 2, groups=6), nn.ReLU), 6, STEM | GROUPED),
    "a transposed one of groups": (
        chain(conv(3, 6, 3), lambda: nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2)),
        6,
        STEM | GROUPED,
    ),
    "groups of many channels, in the place of clients": (
        chain(conv(3, 8, 3, 2), conv(8, 16, 1), lambda: nn.GroupNorm(2, 16), nn.ReLU, conv(16, 16, 3, groups=2)),
        9,
        {"patches": 1, "conv": 3, "conv_data": 2, "conv_weight": 3, "norm": 1, "norm_backward": 1},
    ),
    "one dimension, which stays PyTorch's": (
        chain(lambda: nn.Flatten(2), lambda: nn.Conv1d(3, 4, 5), lambda: nn.GroupNorm(1, 4)),
        4,
        {"norm": 1, "norm_backward": 1},
    ),
    "a norm without weights": (
        chain(conv(3, 4, 3), lambda: nn.GroupNorm(2, 4, affine=False)),
        6,
        {"patches": 1, "conv": 1, "conv_weight": 1, "norm": 1, "norm_backward": 1},
    ),
    "attention": (attending, 8, {"patches": 1, "conv": 1, "conv_weight": 1}),
}


def gradients(module, side):
    """Return a function of images, labels and weights that gives C clients' gradients, and such arguments."""
    names = [n for n, _ in module.named_parameters()]

    def loss(parts, x, y):
        return F.cross_entropy(functional_call(module, parts, (x,)), y)

    def many(x, y, *parts):
        grads, losses = vmap(grad_and_value(loss))(dict(zip(names, parts, strict=True)), x, y)
        return (losses, *grads.values())

    parts = [torch.stack([p + 0.1 * torch.randn_like(p) for _ in range(CLIENTS)]).detach() for p in module.parameters()]
    x, y = torch.randn(CLIENTS, BATCH, 3, side, side, dtype=torch.float64), torch.randint(5, (CLIENTS, BATCH))
    return many, loss, names, (x, y, *parts)


@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_a_module(name):
    make, side, ours = MODULES[name]
    torch.manual_seed(0)
    module = make().double()
    module(torch.zeros(1, 3, side, side, dtype=torch.float64))
    many, loss, names, given = gradients(module, side)
    graph = traced(many, *given)
    found = Counter(c.removeprefix("fedsmoo.").removesuffix(".default") for c in called(graph) if "fedsmoo" in c)
    assert found == ours
    assert "one dimension" in name or not [c for c in called(graph) if "aten.convolution" in c]
    got = graph(*given)
    x, y, *parts = given
    for c in range(CLIENTS):  # by PyTorch, one client after the other
        mine = {n: p[c].detach().requires_grad_() for n, p in zip(names, parts, strict=True)}
        value = loss(mine, x[c], y[c])
        want = [value.detach(), *torch.autograd.grad(value, list(mine.values()))]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a[c], b, rtol=0, atol=1e-13)


def test_what_stands_behind_a_norm_is_part_of_it():
    """Two blocks: all four ReLUs and both sums; backward all but the last ReLU, whose gradient is a mean's."""
    torch.manual_seed(0)
    make, side, _ = MODULES["a residual network"]
    module = make().double()
    module(torch.zeros(1, 3, side, side, dtype=torch.float64))
    many, _, _, given = gradients(module, side)
    left = Counter(called(traced(many, *given)))
    assert left["aten.relu.default"] == 0
    assert left["aten.threshold_backward.default"] == 1
    assert left["aten.add.Tensor"] == 2  # the linear layer's bias, and where both branches of a block meet the stem


class Writing(Block):
    """The same block, as torchvision writes it."""

    def forward(self, x):
        out = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)), inplace=True)))
        out += self.short(x)
        return F.relu(out, inplace=True)


class Seen(nn.Module):
    """A ReLU that writes over what is looked at again, through a part of it: it stays what it is."""

    def forward(self, x):
        x = 2.0 * x
        part = x[:, :1]
        return F.relu(x, inplace=True) + part


def test_layers_that_write_in_place_are_as_those_that_do_not():
    torch.manual_seed(0)
    make, side, _ = MODULES["a residual network"]
    plain, found = make().double(), []
    plain(torch.zeros(1, 3, side, side, dtype=torch.float64))
    writing = nn.Sequential(plain[0], Writing(8, 8, 1), Writing(8, 12, 2), *plain[3:]).double()
    writing.load_state_dict(plain.state_dict())
    _, _, _, given = gradients(plain, side)
    for module in (plain, writing):
        graph = traced(gradients(module, side)[0], *given)
        found.append((Counter(called(graph)), graph(*given)))
    ops = found[1][0]
    assert not {"aten.relu_.default", "aten.add_.Tensor", "aten.relu.default"} & set(ops)
    assert [ops[f"fedsmoo.{n}.default"] for n in ("norm", "norm_backward", "conv")] == [4, 4, 7]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_what_is_written_over_and_seen_is_left_alone():
    seen, x = Seen(), torch.randn(CLIENTS, BATCH, 3, 4, 4, dtype=torch.float64)
    graph = traced(lambda x: vmap(seen)(x), x)
    assert "aten.relu_.default" in called(graph)
    assert torch.equal(graph(x), seen(x.flatten(0, 1)).view_as(x))


@pytest.mark.parametrize(
    ("name", "sums"),
    [("a CNN", 3), ("a residual network", 7), ("a transposed one", 4), ("groups of few channels", 4)],
)
def test_a_flat_gradient_is_written_in_place(name, sums):
    torch.manual_seed(0)
    make, side, ours = MODULES[name]
    module = make().double()
    module(torch.zeros(1, 3, side, side, dtype=torch.float64))
    many, _, _, given = gradients(module, side)

    def flat(*given):
        losses, *parts = many(*given)
        return torch.cat([p.reshape(CLIENTS, -1) for p in parts], -1), losses

    graph = traced(flat, *given)
    found = Counter(called(graph))
    assert found["fedsmoo.place.default"] == 1
    assert found["aten.cat.default"] == 0
    assert found["fedsmoo.conv_weight_parts.default"] == ours["conv_weight"]  # those of patches as well
    assert found["fedsmoo.grouped_weight_parts.default"] == ours.get("grouped_weight", 0)
    assert found["aten.sum.dim_IntList"] == sums  # of losses, twice, and of biases whose gradients no pool sums
    losses, *parts = traced(many, *given)(*given)
    got = graph(*given)
    torch.testing.assert_close(got[0], torch.cat([p.flatten(1) for p in parts], 1), rtol=0, atol=1e-14)
    torch.testing.assert_close(got[1], losses, rtol=0, atol=0)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("way", ["vmap", "functional"])
def test_a_transposed_convolution_whose_outputs_are_padded_by_a_stride(way, groups):
    """As a larger dilation allows: convolved again, they would be more than there were inputs."""
    torch.manual_seed(0)
    x = torch.randn(CLIENTS, BATCH, 6, 1, 3, dtype=torch.float64)
    w = torch.randn(CLIENTS, 6, 8 // groups if groups < 6 else 1, 3, 2, dtype=torch.float64)
    how = (1, 2), (0, 1), (1, 2), groups, (2, 3)  # stride, padding, padding of outputs, groups, dilation

    def loss(x, w):
        return F.conv_transpose2d(x, w, None, *how).sin().sum()

    if way == "vmap":
        with client_rules():
            got = vmap(grad(loss, (0, 1)))(x, w)
    else:
        got = grad(lambda x, w: conv_transpose2d(x, w, None, *how).sin().sum(), (0, 1))(x, w)
    for c in range(CLIENTS):
        for a, b in zip(got, grad(loss, (0, 1))(x[c], w[c]), strict=True):
            torch.testing.assert_close(a[c], b, rtol=0, atol=1e-12)


class Masking(nn.Module):
    """Two masks that begin alike and are written into."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(48, 6), nn.Linear(6, 5)

    def forward(self, x):
        x = self.body(x.flatten(1))
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        first[:, 0], second[:, 1:3] = 1.0, 2.0
        return self.head(x * first + x.tanh() * second)


def test_tensors_that_begin_alike_and_are_written_into():
    torch.manual_seed(0)
    many, _, _, given = gradients(Masking().double(), 4)
    for got, want in zip(traced(many, *given)(*given), many(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


def placed(graph):
    """The fake tensors of the gradients that a graph brings to their places."""
    (call,) = (n for n in graph.graph.nodes if n.target is torch.ops.fedsmoo.place.default)
    return [value(v) for v in call.args[0]]


@pytest.mark.parametrize(
    ("kind", "dtype", "parts"),
    [
        (torch.float32, torch.float32, 5),
        (torch.bfloat16, torch.float32, 5),  # the kernel adds them up in float32
        (torch.float32, torch.float64, 1),
    ],
    ids=str,
)
def test_sums_whose_type_is_named_are_placed_in_parts(kind, dtype, parts):
    """Autocast on a GPU names that of every sum."""

    def flat(w, x):
        return torch.cat([x.sum(1, dtype=dtype), w], 1), w.sum(1)

    draw = torch.Generator().manual_seed(0)
    w, x = torch.randn(3, 4, generator=draw).to(dtype), torch.randn(3, 5, 7, generator=draw).to(kind)
    graph = traced(flat, w, x)
    assert [v.shape for v in placed(graph)] == [(3, parts, 7), (3, 1, 4)]
    got = graph(w, x)[0]
    assert got.dtype == dtype
    torch.testing.assert_close(got[:, :7].double(), x.double().sum(1), rtol=0, atol=1e-6)


@pytest.fixture
def sums_as_on_a_gpu():
    """While this lasts, autocast on a CPU names the type of sums, as it does on a GPU."""
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def named(x, dim, keepdim=False, *, dtype=None):
        with torch._C._ExcludeDispatchKeyGuard(below):
            dtype = torch.float32 if dtype is None and x.is_floating_point() else dtype
            return torch.ops.aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)

    library = torch.library.Library("aten", "IMPL")
    library.impl("sum.dim_IntList", named, "AutocastCPU")
    yield
    library._destroy()


@pytest.mark.parametrize(("name", "sums"), [("a CNN", 3), ("a residual network", 7)])
def test_autocast_leaves_sums_over_samples_where_they_are_placed(name, sums, sums_as_on_a_gpu):
    """As many are left as in float32: no norm's, no linear layer's, and none that a pool makes on its way back."""
    torch.manual_seed(0)
    make, side, _ = MODULES[name]
    module = make()
    module(torch.zeros(1, 3, side, side))
    many, _, _, (x, y, *parts) = gradients(module, side)
    given = x.float(), y, *(p.float() for p in parts)

    def flat(*given):
        with torch.autocast("cpu", torch.bfloat16), Instead(WHOLE):
            losses, *found = many(*given)
        return torch.cat([p.reshape(CLIENTS, -1) for p in found], -1), losses

    graph = traced(flat, *given)
    assert called(graph).count("aten.sum.dim_IntList") == sums
    want = torch.cat([p.flatten(1) for p in traced(many, *given)(*given)[1:]], 1)  # in float32
    assert float((graph(*given)[0] - want).norm() / want.norm()) < 0.05


def test_a_sum_of_as_many_numbers_as_clients_is_placed_turned():
    """Its shape says nothing then; it is added up before it is placed."""

    def gradients(w, x):
        turned = x.sum(1).permute(1, 0)
        return torch.cat([turned, x.sum(1), w], 1), w.sum(1)

    given = torch.randn(3, 7, dtype=torch.float64), torch.randn(3, 5, 3, dtype=torch.float64)
    graph = traced(gradients, *given)
    assert "fedsmoo.place.default" in called(graph)
    torch.testing.assert_close(graph(*given), gradients(*given))


def test_a_gradient_whose_clients_lie_last_in_memory_is_placed():
    def flat(w, x):
        last = torch.einsum("cp,c->pc", w, x).clone(memory_format=torch.contiguous_format)
        alike = x.sum().expand(4).expand(CLIENTS, 4)
        return torch.cat([last.t(), alike, w], 1), w.sum(1)

    given = torch.randn(CLIENTS, 5, dtype=torch.float64), torch.randn(CLIENTS, dtype=torch.float64)
    graph = traced(flat, *given)
    assert all(v.is_contiguous() for v in placed(graph))
    assert torch.equal(graph(*given)[0], flat(*given)[0])


class Casting(nn.Module):
    """A layer and a convolution whose products are of another type than all else."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.conv, self.head = kind, nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x):
        x = F.conv2d(x.to(self.kind), *(p.to(self.kind) for p in self.conv.parameters())).to(x.dtype)
        x = x.mean((2, 3)).tanh()
        return F.linear(x.to(self.kind), *(p.to(self.kind) for p in self.head.parameters())).to(x.dtype)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_gradients_are_placed_in_types_that_kernels_read(kind):
    """Numbers of two bytes are bfloat16 to the kernel, all others float32."""
    torch.manual_seed(0)
    many, _, _, (x, y, *parts) = gradients(Casting(kind), 4)
    given = x.float(), y, *parts

    def flat(*given):
        losses, *found = many(*given)
        return torch.cat([p.reshape(CLIENTS, -1) for p in found], -1), losses

    graph, want = traced(flat, *given), flat(*given)[0]
    assert {v.dtype for v in placed(graph)} == {torch.bfloat16 if kind == torch.bfloat16 else torch.float32}
    got = graph(*given)[0]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6 if kind == torch.float64 else 1e-2)


def test_afterwards_the_rules_are_pytorch_s_own_again():
    conv = nn.Conv2d(2, 3, 3).double()
    w, x = torch.randn(2, *conv.weight.shape, dtype=torch.float64), torch.randn(2, 4, 2, 5, 5, dtype=torch.float64)

    def calls():
        with torch.profiler.profile() as seen:
            out = vmap(lambda w, x: F.conv2d(x, w))(w, x)
        return out, any("fedsmoo::conv" in e.key for e in seen.key_averages())

    with client_rules():
        inside, ours = calls()
    outside, still = calls()
    assert ours
    assert not still
    torch.testing.assert_close(inside, outside, rtol=0, atol=1e-14)


def test_frozen_weights_are_one_larger_batch():
    w, x = torch.randn(3, 2, 3, 3, dtype=torch.float64), torch.randn(4, 5, 2, 6, 6, dtype=torch.float64)
    with client_rules():
        found = vmap(lambda x: F.conv2d(x, w, padding=1))(x)
    torch.testing.assert_close(found, F.conv2d(x.flatten(0, 1), w, padding=1).unflatten(0, (4, 5)), rtol=0, atol=1e-14)


def test_second_derivatives_of_a_norm_are_refused():
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    from fedsmoo.operators.norm import GroupNorm

    out = GroupNorm.apply(x, torch.ones(4).double(), torch.zeros(4).double(), 2, 1e-5)[0]
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("operator", [norm._opoverload], ids=str)
def test_what_operators_say_of_themselves_is_true(operator):
    given = torch.randn(2, 3, 5, 4), torch.randn(2, 4), torch.randn(2, 4), 2, 1e-5
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
