"""The operators with a client axis on a GPU at real sizes, with the tiles that the rules choose, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.operators.convolution import conv, conv_data, conv_weight, patches

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


def test_patches_of_images() -> None:
    x = torch.randn(2, 50, 32, 32, 3, device="cuda").bfloat16()
    found = patches(x, [5, 5], [1, 1], [2, 2], [1, 1])
    want = F.unfold(x[1].float().permute(0, 3, 1, 2), 5, padding=2).unflatten(1, (3, 25)).transpose(1, 2).flatten(1, 2)
    assert torch.equal(found[1, ..., :75].float().flatten(1, 2).mT, want)
