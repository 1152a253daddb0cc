"""Convolutions whose groups have few channels, with a client axis: the three products against PyTorch's own, client by
client."""

import sys

import pytest
import torch
import torch.nn.functional as F
from operators.test_grouped import flat_gradient, network

# clients, batch, (height, width), inputs, outputs, groups, kernel, stride, padding, dilation
SHAPES = {
    "of each channel": (2, 3, (8, 8), 16, 16, 16, (3, 3), (1, 1), (1, 1), (1, 1)),
    "one client, one sample, one pixel": (1, 1, (1, 1), 3, 3, 3, (1, 1), (1, 1), (0, 0), (1, 1)),
    "primes": (3, 2, (7, 5), 17, 17, 17, (3, 3), (1, 1), (1, 1), (1, 1)),
    "more channels than a tile": (1, 1, (3, 4), 131, 131, 131, (3, 3), (2, 2), (1, 1), (1, 1)),
    "a stride that does not divide": (2, 2, (7, 9), 16, 16, 16, (3, 3), (2, 2), (1, 1), (1, 1)),
    "unequal strides": (1, 2, (9, 10), 4, 4, 4, (5, 3), (2, 3), (2, 0), (1, 1)),
    "dilated": (2, 1, (9, 9), 8, 8, 8, (3, 3), (1, 1), (2, 2), (2, 2)),
    "dilated and strided": (1, 2, (11, 9), 6, 6, 6, (3, 2), (2, 2), (1, 1), (3, 2)),
    "7x7": (1, 2, (6, 5), 8, 8, 8, (7, 7), (1, 1), (3, 3), (1, 1)),
    "more padding than the kernel needs": (1, 1, (4, 3), 5, 5, 5, (2, 3), (1, 2), (3, 4), (1, 1)),
    "two outputs of each channel": (2, 2, (5, 7), 6, 12, 6, (3, 3), (2, 1), (1, 1), (1, 1)),
    "groups of four": (2, 2, (5, 6), 12, 12, 3, (3, 3), (1, 1), (1, 1), (1, 1)),
    "groups of two inputs and three outputs": (1, 3, (7, 5), 10, 15, 5, (3, 2), (2, 1), (1, 1), (1, 2)),
    "one output of groups of many": (1, 2, (4, 5), 22, 2, 2, (3, 3), (1, 1), (1, 1), (1, 1)),
    "pixels that no output meets": (1, 1, (6, 6), 4, 4, 4, (1, 1), (3, 3), (0, 0), (1, 1)),
}


def reference(x, w, dy, s, p, d, groups):
    """Outputs and gradients by PyTorch in float64, of each client by itself; channels last."""
    rows = []
    for xc, wc, dyc in zip(x, w, dy, strict=True):
        parts = [xc.double().permute(0, 3, 1, 2), wc.double().permute(3, 2, 0, 1)]
        parts = [v.detach().requires_grad_() for v in parts]
        out = F.conv2d(*parts, None, s, p, d, groups)
        dx, dw = torch.autograd.grad(out, parts, dyc.double().permute(0, 3, 1, 2))
        rows.append((out.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dw.permute(2, 3, 1, 0)))
    return [torch.stack(v) for v in zip(*rows, strict=True)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_three_products(shape, draw):
    from fedsmoo.kernels.conv import grouped
    from fedsmoo.kernels.conv.geometry import Geometry

    clients, batch, size, inside, outside, groups, kernel, *how = shape
    g = Geometry(kernel, *how)
    x, w = draw(clients, batch, *size, inside), draw(clients, *kernel, inside // groups, outside)
    dy = draw(clients, batch, *g.outputs(size), outside)
    weight = grouped.weight_parts(g, x, dy, groups, parts=2)
    assert weight.shape[0] == 2
    found = grouped.forward(g, x, w, groups), grouped.data(g, dy, w, groups, size), weight.sum(0)
    for got, want in zip(found, reference(x, w, dy, *how, groups), strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6 * max(1.0, float(want.abs().max())))


@pytest.mark.parametrize("far", [False, True])
def test_places_in_images_of_more_numbers_than_32_bits_count(far, offsets, draw, device, monkeypatch):
    from fedsmoo.kernels.conv import conv, grouped
    from fedsmoo.kernels.conv.geometry import Geometry

    if far:
        monkeypatch.setattr(conv, "REACH", 100)  # in place of 2^31
    g = Geometry((3, 2), (2, 1), (1, 0), (1, 2))
    x, w, dy = draw(2, 3, 7, 6, 5), draw(2, 3, 2, 1, 5), draw(2, 3, 4, 4, 5)
    found = grouped.forward(g, x, w, 5), grouped.data(g, dy, w, 5, (7, 6)), grouped.weight_parts(g, x, dy, 5, 2).sum(0)
    for got, want in zip(found, reference(x, w, dy, g.stride, g.padding, g.dilation, 5), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)
    if device == "cpu":  # interpreted
        assert [offsets(t) for t in (x, dy, *found[:2])] == [{"int64" if far else "int32"}] * 4


@pytest.mark.parametrize("relu", [False, True])
def test_a_bias_and_a_relu_behind_it_and_weights_of_clients_that_lie_apart(relu, draw):
    from fedsmoo.kernels.conv import grouped
    from fedsmoo.kernels.conv.geometry import Geometry

    g, rows = Geometry((3, 3), (1, 1), (1, 1)), draw(2, 200)
    x, bias = draw(2, 3, 5, 7, 11), rows[:, 3:14]  # a bias as it lies among parameters
    w = rows[:, 16 : 16 + 99].unflatten(1, (3, 3, 1, 11))
    found = grouped.forward(g, x, w, 11, bias, relu)
    for c in range(2):
        given = x[c].double().permute(0, 3, 1, 2), w[c].double().permute(3, 2, 0, 1), bias[c].double()
        want = F.conv2d(*given, 1, 1, 1, 11)
        torch.testing.assert_close(
            found[c].double(), (want.relu() if relu else want).permute(0, 2, 3, 1), rtol=0, atol=2e-5
        )


def test_numbers_of_bfloat16_are_summed_in_float32(draw):
    """One part alone is rounded to the type of products once; several are not rounded."""
    from fedsmoo.kernels.conv import grouped
    from fedsmoo.kernels.conv.geometry import Geometry

    g = Geometry((3, 3), (1, 1), (1, 1))
    x, w, dy = (v.bfloat16() for v in (draw(1, 2, 6, 6, 8), draw(1, 3, 3, 1, 8), draw(1, 2, 6, 6, 8)))
    out, dx, dw = reference(x, w, dy, 1, 1, 1, 8)
    one, two = (grouped.weight_parts(g, x, dy, 8, parts) for parts in (1, 2))
    assert (one.dtype, two.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(two.sum(0).double(), dw, rtol=0, atol=1e-4)
    found = grouped.forward(g, x, w, 8), grouped.data(g, dy, w, 8, (6, 6)), one[0]
    for got, want in zip(found, (out, dx, dw), strict=True):  # the interpreter cuts bits off, a GPU rounds
        torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=1e-5)


def test_a_sum_over_pixels_has_more_parts_where_programs_are_few(device):
    from fedsmoo.kernels.conv import grouped
    from fedsmoo.kernels.conv.geometry import Geometry

    g = Geometry((3, 3), (1, 1), (1, 1))
    few, many = (torch.empty(c, 50, 32, 32, 64, device="meta") for c in (1, 400))
    assert grouped.parts_of(g, few, few, 64) == 32  # as many as there may be
    assert grouped.parts_of(g, many, many, 64) == 1


def test_pixels_beyond_the_last_are_counted_too(device):
    """Each of 32 parts may end in a tile of pixels that there are not: of one channel and one tap, of 4,096."""
    from fedsmoo.kernels.conv import conv, grouped
    from fedsmoo.kernels.conv.tiles import parts_for

    parts, tile = parts_for(1, 1, conv.PIXELS, each=5), grouped.weight_tile(conv.PIXELS, 1, 1)["BP"]
    assert (parts, tile) == (32, 4096)
    blocks = (conv.PIXELS // tile + parts) // parts  # of each part
    assert parts * blocks * tile <= 2**31


def test_a_graph_of_a_network_with_groups(device, monkeypatch):
    """All that a step calls, by kernels: weights cast, convolutions of three kinds, the flat gradient placed.

    On a GPU also groups of eight channels are convolved as groups.
    """
    from fedsmoo.operators.trace import called, traced

    if device == "cpu":  # the interpreter's, which knows no other precision
        for name, module in list(sys.modules.items()):
            if name.startswith("fedsmoo.operators") and hasattr(module, "by_kernels"):
                monkeypatch.setattr(module, "by_kernels", lambda x: x.dtype == torch.float32)
            if name.startswith("fedsmoo.operators") and hasattr(module, "precision_of"):
                monkeypatch.setattr(module, "precision_of", lambda x: "ieee")
    torch.manual_seed(0)
    module = network()
    w = 0.2 * torch.randn(2, sum(p.numel() for p in module.parameters()), dtype=torch.float64)
    x, y = torch.randn(2, 8, 3, 7, 7, dtype=torch.float64), torch.randint(5, (2, 8))
    exact = flat_gradient(module, None)(w, x, y)
    given = [v.to(device) for v in (w.float(), x.float(), y)]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        graph = traced(flat_gradient(module.float().to(device), None), *given)
        found = graph(*given)
    assert called(graph).count("fedsmoo.grouped_weight_parts.default") == (2 if device == "cpu" else 3)
    assert max(n.args[-1] for n in graph.graph.nodes if "grouped_weight_parts" in str(n.target)) > 1
    for got, want in zip(found, exact, strict=True):
        assert float((got.cpu() - want).norm() / want.norm()) < 1e-5
