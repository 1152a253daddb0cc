"""The operators with a client axis on a GPU at real sizes, with the tiles that the rules choose, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.operators.convolution import conv, conv_data, conv_weight, patches
from fedsmoo.operators.groups import choose
from fedsmoo.operators.norm import norm, norm_backward
from fedsmoo.operators.place import place
from fedsmoo.operators.pool import pool, pool_backward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CLIENTS, BATCH = 3, 50
# side, inputs, outputs, kernel, stride: the layers of ResNet-18 with a 3x3 stem, and of a CNN
LAYERS = [
    (32, 64, 64, 3, 1), (32, 64, 128, 3, 2), (16, 128, 128, 3, 1), (16, 128, 256, 1, 2), (8, 256, 256, 3, 1),
    (8, 256, 512, 3, 2), (4, 512, 512, 3, 1), (14, 64, 64, 5, 1), (9, 24, 40, 3, 1),
]  # fmt: skip
# Numbers of bfloat16 and tf32 have 8 and 11 bits; sums are in float32.
NEAR = {"bf16": 6e-3, "tf32": 2e-3, "fp32": 2e-6}


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda v: "-".join(map(str, v)))
def test_products_of_a_layer(layer: tuple[int, ...], precision: str) -> None:
    side, inside, outside, kernel, stride = layer
    how = [stride, stride], [kernel // 2] * 2, [1, 1]
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    draw = torch.Generator("cuda").manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device="cuda").to(kind)

    x, w = new(CLIENTS, BATCH, side, side, inside), new(CLIENTS, kernel, kernel, inside, outside)
    high = (side + 2 * (kernel // 2) - kernel) // stride + 1
    dy = new(CLIENTS, BATCH, high, high, outside)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=precision != "fp32"):
        found = conv(x, w, *how), conv_data(dy, w, [side, side], *how), conv_weight(x, dy, [kernel, kernel], *how)
    for c in range(CLIENTS):
        images, weights = x[c].double().permute(0, 3, 1, 2), w[c].double().permute(3, 2, 0, 1)
        images, weights = images.requires_grad_(), weights.requires_grad_()
        out = F.conv2d(images, weights, None, stride, kernel // 2)
        dx, dw = torch.autograd.grad(out, (images, weights), dy[c].double().permute(0, 3, 1, 2))
        truths = out.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dw.permute(2, 3, 1, 0)
        for got, want in zip(found, truths, strict=True):
            assert float((got[c].double() - want).norm() / want.norm()) < NEAR[precision]


# side, inputs, outputs, groups, kernel, stride, dilation: of MobileNetV2, ConvNeXt, ResNeXt; two outputs of each
# channel; odd sizes; groups of 16, which the library convolves, and of 32, which take the place of clients
GROUPED = [
    (32, 96, 96, 96, 3, 1, 1), (32, 144, 144, 144, 3, 2, 1), (8, 960, 960, 960, 3, 1, 1), (16, 96, 96, 96, 7, 1, 1),
    (16, 128, 128, 32, 3, 1, 1), (16, 256, 256, 32, 3, 2, 1), (16, 64, 128, 64, 3, 1, 2), (9, 35, 21, 7, 5, 2, 1),
    (16, 128, 192, 8, 3, 1, 1), (16, 128, 128, 4, 3, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("layer", GROUPED, ids=lambda v: "-".join(map(str, v)))
def test_products_of_a_layer_with_groups(layer: tuple[int, ...], precision: str) -> None:
    """Right, and a second time the same bits: sums have a fixed order.

    Groups of few channels are left to PyTorch's library, which adds 12,800 products of float32 in a long row.
    """
    side, inside, outside, groups, kernel, stride, dilation = layer
    near = {**NEAR, "fp32": 1e-5}[precision]
    around = dilation * (kernel - 1) // 2
    how = [stride, stride], [around, around], [dilation, dilation]
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    draw = torch.Generator("cuda").manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device="cuda").to(kind)

    x, w = new(CLIENTS, BATCH, side, side, inside), new(CLIENTS, kernel, kernel, inside // groups, outside)
    high = (side + 2 * around - dilation * (kernel - 1) - 1) // stride + 1
    dy = new(CLIENTS, BATCH, high, high, outside)

    def products() -> list[Tensor]:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=precision != "fp32"):
            data = choose.data_gradient(dy, w, [side, side], *how, groups)
            weight = choose.weight_gradient(x, dy, [kernel, kernel], *how, groups)
            return [choose.convolved(x, w, *how, groups), data, weight]

    found = products()
    assert all(torch.equal(a, b) for a, b in zip(found, products(), strict=True))
    for c in range(CLIENTS):
        images, weights = x[c].double().permute(0, 3, 1, 2), w[c].double().permute(3, 2, 0, 1)
        images, weights = images.requires_grad_(), weights.requires_grad_()
        out = F.conv2d(images, weights, None, stride, around, dilation, groups)
        dx, dw = torch.autograd.grad(out, (images, weights), dy[c].double().permute(0, 3, 1, 2))
        truths = out.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dw.permute(2, 3, 1, 0)
        for got, want in zip(found, truths, strict=True):
            assert float((got[c].double() - want).norm() / want.norm()) < near


def test_patches_of_images() -> None:
    x = torch.randn(2, 50, 32, 32, 3, device="cuda").bfloat16()
    found = patches(x, [5, 5], [1, 1], [2, 2], [1, 1])
    want = F.unfold(x[1].float().permute(0, 3, 1, 2), 5, padding=2).unflatten(1, (3, 25)).transpose(1, 2).flatten(1, 2)
    assert torch.equal(found[1, ..., :75].float().flatten(1, 2).mT, want)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").bfloat16()


@pytest.mark.parametrize(("side", "inside", "kernel"), [(32, 64, 3), (14, 64, 5), (28, 80, 1), (9, 24, 3)])
def test_a_bias_and_a_relu_behind_a_convolution(side: int, inside: int, kernel: int) -> None:
    x, w, rows = (
        drawn(CLIENTS, BATCH, side, side, inside),
        drawn(CLIENTS, kernel, kernel, inside, 64),
        drawn(CLIENTS, 99),
    )
    bias = 8 * rows.float()[:, 3:67]  # as it lies among parameters
    found = conv(x, w, [1, 1], [kernel // 2] * 2, [1, 1], bias, True)
    for c in range(CLIENTS):
        images, weights = x[c].double().permute(0, 3, 1, 2), w[c].double().permute(3, 2, 0, 1)
        want = F.conv2d(images, weights, bias[c].double(), 1, kernel // 2).relu().permute(0, 2, 3, 1)
        assert float((found[c].double() - want).norm() / want.norm()) < NEAR["bf16"]


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(("side", "channels", "how"), [(28, 64, (2, 2, 0)), (33, 64, (3, 2, 1)), (10, 24, (3, 1, 1))])
def test_pools(side: int, channels: int, how: tuple[int, int, int], positive: bool) -> None:
    """In bfloat16 many pixels of a window are equal, and where a ReLU stands before it they are zero."""
    x, pairs = drawn(CLIENTS, BATCH, side, side, channels), [[v, v] for v in how]
    x = x.relu() if positive else x
    images = x.flatten(0, 1).double().permute(0, 3, 1, 2).requires_grad_()
    want = F.max_pool2d(images.relu() if positive else images, *how)
    high = want.shape[-1]
    dy = drawn(CLIENTS, BATCH, high, high, channels)
    y, which = pool(x, [high, high], *pairs, positive)
    dx, sums = pool_backward(dy, which, [side, side], *pairs)
    (gradient,) = torch.autograd.grad(want, images, dy.flatten(0, 1).double().permute(0, 3, 1, 2))
    gradient = gradient.permute(0, 2, 3, 1).unflatten(0, (CLIENTS, BATCH))
    assert torch.equal(y.flatten(0, 1).double(), want.detach().permute(0, 2, 3, 1))
    assert float((dx.double() - gradient).norm() / gradient.norm()) < NEAR["bf16"]
    torch.testing.assert_close(sums.double(), dx.double().sum((2, 3)), rtol=0, atol=1e-2)


@pytest.mark.parametrize(("pixels", "channels"), [(1024, 64), (256, 128), (64, 256), (16, 512), (49, 24)])
@pytest.mark.parametrize("way", ["outputs", "sign", "kept"])
def test_norms(pixels: int, channels: int, way: str) -> None:
    x, dy = drawn(CLIENTS, BATCH, pixels, channels), drawn(CLIENTS, BATCH, pixels, channels).flip(1)
    more = drawn(CLIENTS, BATCH, pixels, channels).flip(2)
    gamma, beta = drawn(CLIENTS, 2 * channels + 3).float().split((channels + 3, channels), 1)
    gamma = gamma[:, 1 : channels + 1]
    y, mean, rstd = norm(x, gamma, beta, 2, 1e-5, None, True)
    keep, told = way == "kept", (None, beta) if way == "sign" else (y, None)
    found = norm_backward(dy, x, gamma, mean, rstd, 2, told[0], more, keep, told[1])
    for c in range(CLIENTS):
        parts = [v[c].double().requires_grad_() for v in (x, gamma, beta)]
        out = F.group_norm(parts[0].mT, 2, *parts[1:]).mT.relu()
        wanted = torch.autograd.grad(out, parts, (dy + more)[c].double())
        for got, want in zip((found[0][c], found[1][c].sum(0), found[2][c].sum(0)), wanted, strict=True):
            assert float((got.double() - want).norm() / want.norm()) < 2e-2
    if keep:
        assert torch.equal(found[3], torch.where(y <= 0, 0, dy + more))


def test_a_flat_gradient_of_all_kinds_of_sources() -> None:
    sources = [
        drawn(2, CLIENTS, 1, 80, 64)[:, :, :, :75].view(2, CLIENTS, 25, 3, 64), drawn(1, CLIENTS, 9, 128, 128),
        drawn(CLIENTS, 50, 64).float(), drawn(CLIENTS, 50, 384), drawn(CLIENTS, 1, 73728),
        drawn(CLIENTS, 1, 10).float(),
    ]  # fmt: skip
    rows = [v.double() for v in sources]
    rows = [v.sum(1) if v.dim() == 3 else v.sum(0).permute(0, 3, 2, 1).flatten(1) for v in rows]
    torch.testing.assert_close(place(sources).double(), torch.cat(rows, 1), rtol=0, atol=1e-4)
