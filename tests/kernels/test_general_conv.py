"""Convolutions of any shape with a client axis: the three products against PyTorch's own, client by client."""

from functools import partial

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
    from fedsmoo.kernels.conv.tiles import Tile

    clients, batch, size, inside, outside, kernel, stride, padding, dilation = shape
    geometry = Geometry(kernel, stride, padding, dilation)
    conv = Convolution(geometry)
    x, w = draw(clients, batch, *size, inside), draw(clients, *kernel, inside, outside)
    dy = draw(clients, batch, *geometry.outputs(size), outside)
    found = conv.forward(x, w), conv.data(dy, w, size), conv.weight(x, dy, parts=2)
    wanted = reference(x, w, dy, stride, padding, dilation)
    across = conv.weight(x, dy, Tile(16, 16, 32, across=True), 2)
    for got, want in zip((*found, across), (*wanted, wanted[-1]), strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6 * max(1.0, float(want.abs().max())))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["3x3", "dilated", "a kernel larger than the image", "wide", "small maps"])
def test_boxes_of_pixels(name, turned, draw):
    """Turned, weight gradients read rows of pixels where boxes are such: of outputs of 8x8, 2x2 and 4x4."""
    from fedsmoo.kernels.conv import boxes
    from fedsmoo.kernels.conv.geometry import Geometry

    odd = (2, 3, (5, 7), 8, 24, (3, 3), (1, 1), (0, 2), (1, 1))
    small = (2, 3, (4, 4), 8, 24, (3, 3), (1, 1), (1, 1), (1, 1))  # two samples in a box
    shapes = {**SHAPES, "wide": odd, "small maps": small}
    clients, batch, size, inside, outside, kernel, stride, padding, dilation = shapes[name]
    inside, outside = -(-inside // 8) * 8, -(-outside // 8) * 8
    g = Geometry(kernel, stride, padding, dilation)
    x, w = draw(clients, batch, *size, inside), draw(clients, *kernel, inside, outside)
    dy = draw(clients, batch, *g.outputs(size), outside)
    out, back = (boxes.Box(*boxes.box_of(32, s), 16, 16, turned=turned) for s in (g.outputs(size), size))
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


@pytest.mark.parametrize(("inside", "outside", "side"), [(16, 32, 5), (32, 16, 8), (256, 16, 8), (20, 12, 5)])
def test_layers_in_tf32_by_the_tiles_of_the_rules(inside, outside, side, draw):
    """Interpreted, tf32 is not rounded."""
    from fedsmoo.kernels.conv import choose
    from fedsmoo.kernels.conv.geometry import Geometry

    g, size = Geometry((3, 3), (1, 1), (1, 1)), (side, side)
    x, w, dy = draw(2, 3, *size, inside), draw(2, 3, 3, inside, outside), draw(2, 3, *size, outside)
    found = choose.forward(g, x, w, "tf32"), choose.data(g, dy, w, size, "tf32"), choose.weight(g, x, dy, "tf32")
    near = {"cpu": 1e-6, "cuda": 2e-3}[x.device.type]
    for got, want in zip(found, reference(x, w, dy, 1, 1, 1), strict=True):
        assert float((got.double() - want).norm() / want.norm()) < near


@pytest.mark.parametrize(
    ("kind", "inside", "outside", "side", "found"),
    [
        ("float32", 64, 64, 32, {"pixels_kernel": [8, 8], "weight_kernel": [2]}),
        ("float32", 64, 128, 10, {"forward_kernel": [2], "data_kernel": [4], "weight_kernel": [2]}),
        ("float32", 32, 64, 26, {"forward_kernel": [2], "data_kernel": [2], "weight_kernel": [2]}),
        ("float32", 256, 256, 8, {"pixels_kernel": [8, 8], "weight_boxes_kernel": [8]}),
        ("float32", 24, 40, 9, {"forward_kernel": [4], "data_kernel": [4], "weight_kernel": [4]}),
        ("bfloat16", 64, 64, 32, {"pixels_kernel": [8, 8], "weight_boxes_kernel": [4]}),
    ],
)
def test_two_warps_multiply_float32_where_they_were_faster(kind, inside, outside, side, found, device, monkeypatch):
    """Where channels come in pieces of 16: without boxes, and weight gradients of fewer than 256 channels."""
    from fedsmoo.kernels.conv import choose
    from fedsmoo.kernels.conv.geometry import Geometry
    from fedsmoo.kernels.runtime import noting

    monkeypatch.setattr(choose, "interpreted", lambda: True)  # as on a device that brings boxes
    g, new = Geometry((3, 3), (1, 1), (1, 1)), partial(torch.zeros, dtype=getattr(torch, kind))
    x, w, dy = new(2, 50, side, side, inside), new(2, 3, 3, inside, outside), new(2, 50, side, side, outside)
    with noting() as noted:
        choose.forward(g, x, w, "tf32")
        choose.data(g, dy, w, (side, side), "tf32")
        choose.weight_parts(g, x, dy, "tf32", choose.parts_of(g, x, dy, "tf32"))
    warps = dict[str, list[int]]()
    for kernel, _, _, meta in noted:
        warps.setdefault(kernel.__name__, []).append(meta["num_warps"])
        assert meta.get("ACROSS", False) == (kernel.__name__ == "weight_kernel" and meta["num_warps"] == 2)
    assert warps == found


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_data_gradients_of_channels_that_fill_no_tile_have_small_ones(kind, device):
    """Larger ones spilled 56 to 344 bytes a thread: of 65 and 256 channels, 50 and 20, 100 and 99, 36 and 64."""
    from fedsmoo.kernels.conv.tiles import pixel_tile

    def tile(inside, outside):
        found = pixel_tile(10, 50 * 32 * 32, inside, outside, getattr(torch, kind), exact=False, back=True)
        return found.rows, found.cols, found.warps

    assert {tile(*c) for c in ((65, 256), (50, 20), (100, 99), (36, 64), (40, 3))} == {(64, 64, 4)}
    assert tile(128, 128) == (128, 128, 8)


@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_a_batch_of_no_samples(precision, device):
    """No outputs, and gradients of zero by weights, as PyTorch has it."""
    from fedsmoo.kernels.conv import choose, grouped
    from fedsmoo.kernels.conv.geometry import Geometry

    g = Geometry((3, 3), (1, 1), (1, 1))
    x, w, each = (
        torch.zeros(shape, device=device) for shape in ((2, 0, 8, 8, 16), (2, 3, 3, 16, 16), (2, 3, 3, 1, 16))
    )
    for found in (choose.forward(g, x, w, precision), choose.data(g, x, w, (8, 8), precision)):
        assert found.shape == x.shape
    for found in (grouped.forward(g, x, each, 16), grouped.data(g, x, each, 16, (8, 8))):
        assert found.shape == x.shape
    assert torch.equal(choose.weight(g, x, x, precision), w)
    assert torch.equal(grouped.weight_parts(g, x, x, 16, grouped.parts_of(g, x, x, 16)).sum(0), each)


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


@pytest.mark.parametrize("far", [False, True])
def test_places_in_images_of_more_numbers_than_32_bits_count(far, offsets, draw, device, monkeypatch):
    from fedsmoo.kernels.conv import conv
    from fedsmoo.kernels.conv.geometry import Geometry

    if far:
        monkeypatch.setattr(conv, "REACH", 100)  # in place of 2^31
    g = Geometry((3, 2), (2, 1), (1, 0), (1, 2))
    x, w, dy = draw(2, 3, 7, 6, 5), draw(2, 3, 2, 5, 6), draw(2, 3, 4, 4, 6)
    product = conv.Convolution(g)
    found = product.forward(x, w), product.data(dy, w, (7, 6)), product.weight(x, dy, parts=2)
    copied = conv.patches(g, x, 32)
    for got, want in zip(found, reference(x, w, dy, g.stride, g.padding, g.dilation), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)
    kind = {"int64" if far else "int32"}
    if device == "cpu":  # interpreted
        assert [offsets(t) for t in (x, dy, *found[:2], copied)] == [kind] * 5
    want = F.unfold(x[1].permute(0, 3, 1, 2), g.kernel, g.dilation, g.padding, g.stride)
    assert torch.equal(copied[1, ..., :30].flatten(1, 2).mT.reshape(3, 6, 5, 16).transpose(1, 2).flatten(1, 2), want)


def test_when_32_bits_are_too_few():
    """A whole data set as one batch: 50,000 images of 28x28, whose patches are 80 numbers wide, are 3.1 billion."""
    from fedsmoo.core import FedsmooError
    from fedsmoo.kernels.conv.conv import Convolution, patches
    from fedsmoo.kernels.conv.geometry import Geometry
    from fedsmoo.kernels.runtime import noting

    def launches(batch):
        new, g = partial(torch.empty, device="meta", dtype=torch.bfloat16), Geometry((3, 3), (1, 1), (1, 1))
        product, x, y = Convolution(g, "tf32"), new(1, batch, 28, 28, 64), new(1, batch, 28, 28, 32)
        with noting() as noted:
            product.forward(x, new(1, 3, 3, 64, 32))
            product.data(y, new(1, 3, 3, 64, 32), (28, 28))
            product.weight_parts(x, y)
            patches(Geometry((5, 5)), new(1, batch, 32, 32, 3), 80)
        return [meta["FAR"] for *_, meta in noted]

    assert launches(30_000) == [False] * 4  # at most 1.9 billion
    assert launches(40_000) == [False, False, False, True]  # 2.0 and 2.5 billion, of 2.147
    assert launches(50_000) == [True] * 4
    with pytest.raises(FedsmooError, match=r"3,000,000 images of one client has 3,072,000,000 pixels.*batch_size"):
        patches(Geometry((1, 1)), torch.empty(1, 3_000_000, 32, 32, 1, device="meta"), 8)


def test_boxes_serve_from_compute_capability_9_on(monkeypatch):
    from fedsmoo.kernels.conv import choose
    from fedsmoo.kernels.conv.geometry import Geometry

    x = torch.zeros(1, 2, 8, 8, 16)
    many = torch.empty(1, 2**21, 32, 32, 16, device="meta")  # 2^31 pixels, which 32 bits do not count
    monkeypatch.setattr(choose, "interpreted", lambda: False)
    for capability, serves in (((8, 9), False), ((9, 0), True), ((10, 3), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert not choose.shapes_serve(Geometry((3, 3), (1, 1), (1, 1), (1, 1)), "tf32", many)
        assert choose.shapes_serve(Geometry((3, 3), (1, 1), (1, 1), (1, 1)), "tf32", x) is serves
