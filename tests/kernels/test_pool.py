"""Maximum pooling with a byte for each window against PyTorch's own: kernels, and what stands in for them elsewhere."""

import pytest
import torch
import torch.nn.functional as F

# samples, (height, width), channels, kernel, stride, padding, whether windows may end outside
SHAPES = {
    "halved": (3, (8, 6), 16, (2, 2), (2, 2), (0, 0), False),
    "overlapping": (2, (9, 7), 5, (3, 3), (2, 2), (1, 1), False),
    "a stride that does not divide": (2, (7, 5), 3, (2, 2), (2, 2), (0, 0), True),
    "windows apart": (1, (11, 8), 4, (2, 1), (3, 4), (1, 0), False),
    "one pixel": (1, (1, 1), 1, (1, 1), (1, 1), (0, 0), False),
    "more than a block": (1, (40, 41), 3, (5, 3), (1, 2), (2, 1), False),
    "more channels than a block": (1, (4, 3), 131, (2, 2), (1, 1), (1, 1), False),
}


def by_pytorch(x, dy, how, positive, ceil):
    """Return maxima and the gradient by images ``[N, H, W, CH]`` in float64; a ReLU stands before, if any.

    As a CPU has them: of windows that are -inf everywhere, a GPU passes the gradient to another pixel.
    """
    images = x.double().cpu().permute(0, 3, 1, 2).requires_grad_()
    out = F.max_pool2d(images.relu() if positive else images, *how, ceil_mode=ceil)
    (dx,) = torch.autograd.grad(out, images, dy.double().cpu().permute(0, 3, 1, 2))
    return (v.permute(0, 2, 3, 1).to(x.device) for v in (out.detach(), dx))


def ways():
    from fedsmoo.kernels import pool as kernels
    from fedsmoo.kernels.conv.geometry import Geometry
    from fedsmoo.operators import pool as operators

    def by_kernels(x, size, how, positive):
        g = Geometry(*how)
        y, which = kernels.forward(g, x, size, positive)
        return y, lambda dy: kernels.backward(g, dy, which, x.shape[2:4])

    def by_operators(x, size, how, positive):
        how = [list(v) for v in how]
        y, which = operators.pool(x.double(), list(size), *how, positive)
        return y, lambda dy: operators.pool_backward(dy.double(), which, list(x.shape[2:4]), *how)

    return {"kernels": by_kernels, "operators": by_operators}


@pytest.mark.parametrize("way", ["kernels", "operators"])
@pytest.mark.parametrize("positive", [False, True], ids=["alone", "behind a ReLU"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_forward_and_backward(shape, positive, way, draw):
    samples, size, channels, *how, ceil = shape
    x = (2 * draw(2, samples, *size, channels)).round()  # whole numbers: equal maxima, and maxima of zero
    x = x.relu() if positive else x
    high, wide = F.max_pool2d(torch.zeros(1, 1, *size), *how, ceil_mode=ceil).shape[-2:]
    dy = draw(2, samples, high, wide, channels)
    y, back = ways()[way](x, (high, wide), how, positive)
    dx, sums = back(dy)
    for c in range(2):
        want, gradient = by_pytorch(x[c], dy[c], how, positive, ceil)
        assert torch.equal(y[c].double(), want)
        torch.testing.assert_close(dx[c].double(), gradient, rtol=0, atol=1e-6)
        torch.testing.assert_close(sums[c].double(), gradient.sum((1, 2)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("way", ["kernels", "operators"])
def test_nan_and_infinities_are_as_pytorch_has_them(way, draw):
    x = draw(1, 1, 6, 4, 2)
    x[0, 0, 0, 0], x[0, 0, 1, 1], x[0, 0, 2:4], x[0, 0, 4, 2, 0] = torch.nan, torch.nan, -torch.inf, torch.inf
    dy, how = draw(1, 1, 3, 2, 2), ((2, 2), (2, 2), (0, 0))
    y, back = ways()[way](x, (3, 2), how, False)
    want, gradient = by_pytorch(x[0], dy[0], how, False, False)
    torch.testing.assert_close(y[0].double(), want, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(back(dy)[0][0].double(), gradient, rtol=0, atol=1e-6)
