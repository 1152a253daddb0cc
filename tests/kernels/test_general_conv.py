"""Convolutions of any shape with a client axis: the three products against PyTorch's own, client by client."""

import pytest
import torch
import torch.nn.functional as F

# clients, batch, (height, width), inputs, outputs, kernel, stride, padding, dilation
SHAPES = {
    "3x3": (2, 3, (8, 8), 16, 32, (3, 3), (1, 1), (1, 1), (1, 1)),
    "one client, one sample, one pixel": (1, 1, (1, 1), 3, 5, (1, 1), (1, 1), (0, 0), (1, 1)),
    "primes": (3, 2, (7, 5), 17, 19, (3, 3), (1, 1), (1, 1), (1, 1)),
    "a stride that does not divide": (2, 2, (7, 9), 16, 16, (3, 3), (2, 2), (1, 1), (1, 1)),
    "unequal strides": (1, 2, (9, 10), 4, 6, (5, 3), (2, 3), (2, 0), (1, 1)),
    "dilated": (2, 1, (9, 9), 8, 16, (3, 3), (1, 1), (2, 2), (2, 2)),
    "dilated and strided": (1, 2, (11, 9), 16, 8, (3, 2), (2, 2), (1, 1), (3, 2)),
    "a shortcut": (2, 2, (8, 8), 16, 32, (1, 1), (2, 2), (0, 0), (1, 1)),
    "a stem of a few channels": (2, 2, (9, 9), 3, 16, (5, 5), (1, 1), (2, 2), (1, 1)),
    "a kernel larger than the image": (1, 2, (2, 2), 3, 4, (5, 5), (1, 1), (2, 2), (1, 1)),
    "pixels that no output meets": (1, 1, (6, 6), 4, 4, (1, 1), (3, 3), (0, 0), (1, 1)),
}


def reference(x, w, dy, s, p, d):
    """Outputs and gradients by PyTorch in float64, of each client by itself; channels last."""
    rows = []
    for xc, wc, dyc in zip(x, w, dy, strict=True):
        parts = [xc.double().permute(0, 3, 1, 2), wc.double().permute(3, 2, 0, 1)]
        parts = [v.detach().requires_grad_() for v in parts]
        out = F.conv2d(*parts, None, s, p, d)
        dx, dw = torch.autograd.grad(out, parts, dyc.double().permute(0, 3, 1, 2))
        rows.append((out.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dw.permute(2, 3, 1, 0)))
    return [torch.stack(v) for v in zip(*rows, strict=True)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_three_products(shape, draw):
    from fedsmoo.kernels.conv.conv import Convolution
    from fedsmoo.kernels.conv.geometry import Geometry

    clients, batch, size, inside, outside, kernel, stride, padding, dilation = shape
    geometry = Geometry(kernel, stride, padding, dilation)
    conv = Convolution(geometry)
    x, w = draw(clients, batch, *size, inside), draw(clients, *kernel, inside, outside)
    dy = draw(clients, batch, *geometry.outputs(size), outside)
    found = conv.forward(x, w), conv.data(dy, w, size), conv.weight(x, dy, parts=2)
    for got, want in zip(found, reference(x, w, dy, stride, padding, dilation), strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6 * max(1.0, float(want.abs().max())))


@pytest.mark.parametrize("name", ["3x3", "dilated", "a kernel larger than the image", "wide"])
def test_boxes_of_pixels(name, draw):
    from fedsmoo.kernels.conv import boxes
    from fedsmoo.kernels.conv.geometry import Geometry

    odd = (2, 3, (5, 7), 8, 24, (3, 3), (1, 1), (0, 2), (1, 1))
    clients, batch, size, inside, outside, kernel, stride, padding, dilation = {**SHAPES, "wide": odd}[name]
    inside, outside = -(-inside // 8) * 8, -(-outside // 8) * 8
    g = Geometry(kernel, stride, padding, dilation)
    x, w = draw(clients, batch, *size, inside), draw(clients, *kernel, inside, outside)
    dy = draw(clients, batch, *g.outputs(size), outside)
    out, back = (boxes.Box(*boxes.box_of(32, s), 16, 16) for s in (g.outputs(size), size))
    found = (
        boxes.forward_by_boxes(g, x, w, out),
        boxes.data_by_boxes(g, dy, w, size, back),
        boxes.weight_by_boxes(g, x, dy, out, lambda programs, steps: 2).sum(0),
    )
    for got, want in zip(found, reference(x, w, dy, stride, padding, dilation), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6 * max(1.0, float(want.abs().max())))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("way", ["products", "boxes"])
def test_a_bias_and_a_relu_behind_a_convolution(way, relu, draw):
    from fedsmoo.kernels.conv import boxes
    from fedsmoo.kernels.conv.conv import Convolution
    from fedsmoo.kernels.conv.geometry import Geometry

    g, rows = Geometry((3, 3), (1, 1), (1, 1)), draw(2, 61)
    x, w, bias = draw(2, 3, 5, 7, 8), draw(2, 3, 3, 8, 24), rows[:, 3:27]  # a bias as it lies among parameters
    if way == "boxes":
        found = boxes.forward_by_boxes(g, x, w, boxes.Box(*boxes.box_of(32, (5, 7)), 16, 16), "ieee", bias, relu)
    else:
        found = Convolution(g).forward(x, w, None, bias, relu)
    for c in range(2):
        want = F.conv2d(x[c].double().permute(0, 3, 1, 2), w[c].double().permute(3, 2, 0, 1), bias[c].double(), 1, 1)
        want = (want.relu() if relu else want).permute(0, 2, 3, 1)
        torch.testing.assert_close(found[c].double(), want, rtol=0, atol=2e-5)


def test_products_of_pixels_are_one_row(draw):
    """A kernel of one pixel: forward, data and weight gradients of all images' pixels beside each other."""
    from fedsmoo.kernels.conv import choose

    x, w, dy = draw(2, 3, 5, 7, 8), draw(2, 1, 1, 8, 16), draw(2, 3, 5, 7, 16)
    found = (
        choose.forward(choose.POINTS, x, w, "ieee"),
        choose.data(choose.POINTS, dy, w, (5, 7), "ieee"),
        choose.weight(choose.POINTS, x, dy, "ieee"),
    )
    for got, want in zip(found, reference(x, w, dy, 1, 0, 1), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-4)


def test_patches_without_padding(draw):
    from fedsmoo.kernels.conv.conv import patches
    from fedsmoo.kernels.conv.geometry import Geometry

    x = draw(2, 3, 7, 6, 3)
    found = patches(Geometry((3, 2), (1, 2)), x, 24)
    want = F.unfold(x.flatten(0, 1).permute(0, 3, 1, 2), (3, 2), 1, 0, (1, 2)).unflatten(1, (3, 6)).transpose(1, 2)
    assert torch.equal(found[..., :18].reshape(6, 15, 18), want.flatten(1, 2).mT)
    assert not found[..., 18:].any()


def test_patches(draw):
    from fedsmoo.kernels.conv.conv import patches
    from fedsmoo.kernels.conv.geometry import Geometry

    x = draw(2, 3, 7, 6, 3)
    found = patches(Geometry((3, 2), (2, 1), (1, 0), (1, 2)), x, 24)
    assert found.shape == (2, 3, 4, 4, 24)
    for c in range(2):
        want = F.unfold(x[c].permute(0, 3, 1, 2), (3, 2), (1, 2), (1, 0), (2, 1)).unflatten(1, (3, 6)).transpose(1, 2)
        assert torch.equal(found[c, ..., :18].flatten(1, 2).mT, want.flatten(1, 2))
    assert not found[..., 18:].any()


def test_boxes_serve_from_compute_capability_9_on(monkeypatch):
    from fedsmoo.kernels.conv import choose
    from fedsmoo.kernels.conv.geometry import Geometry

    x = torch.zeros(1, 2, 8, 8, 16)
    monkeypatch.setattr(choose, "interpreted", lambda: False)
    for capability, serves in (((8, 9), False), ((9, 0), True), ((10, 3), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert choose.shapes_serve(Geometry((3, 3), (1, 1), (1, 1), (1, 1)), "tf32", x) is serves
