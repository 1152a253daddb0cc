"""What is not a number stays none: a network that diverged must not go on with zeros, and nobody be told."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsmoo.kernels.resnet18.shapes import live_conv


@pytest.fixture(autouse=True)
def maxima(device, monkeypatch):
    """A GPU's maximum of a number and none is the number, unless it is asked otherwise; interpreted, it is none."""
    if device == "cpu":
        from triton.runtime.interpreter import InterpreterBuilder

        monkeypatch.setattr(InterpreterBuilder, "create_maxnumf", lambda self, a, b: self.binary_op(a, b, np.fmax))


def same(found, want):
    torch.testing.assert_close(found.double().cpu(), want.double().cpu(), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, which is asked for none
def test_a_relu_behind_a_recurrence(draw):
    """Products that overflowed, one to each side, add up to no number."""
    from fedsmoo.kernels.recurrent.steps import forward

    gx, w, h0, none = draw(2, 1, 3, 8), draw(1, 8, 8), draw(1, 3, 8), draw(1, 3, 0)
    w[0, 0, :2], h0[0, 1, :2] = torch.tensor([1.0, -1.0]), torch.inf
    (found, _, _), h = forward("relu", gx, w, draw(1, 0), h0, none, "ieee"), h0[0]
    for t in range(2):
        h = torch.relu(gx[t, 0] + h @ w[0].T)
        same(found[t, 0], h)
    assert h[1].isnan().all()
    assert h[[0, 2]].isfinite().all()


def test_a_relu_behind_a_convolution_of_the_resnet(draw):
    from fedsmoo.kernels.resnet18.conv import conv_forward
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv = live_conv("c", 16, 16, 3, 1, 2)
    n = conv.taps**2 * 16 * 16
    flat, x, out = draw(1, n + 32), draw(1, 3, 2, 2, 16), draw(1, 3, 2, 2, 16)
    x[0, 1, 0, 0, 3] = torch.nan
    conv_forward(conv, x, flat, 0, flat, n, out, Tile(16, 16, 16, 4, 2))
    kernel = flat[0, :n].view(conv.taps, conv.taps, 16, 16).permute(3, 2, 0, 1)
    y = F.conv2d(x[0].permute(0, 3, 1, 2), kernel, padding=1)
    same(out[0].permute(0, 3, 1, 2), torch.relu(F.group_norm(y, 2, flat[0, n : n + 16], flat[0, n + 16 :])))
    assert [bool(v.isnan().all()) for v in out[0]] == [False, True, False]


def test_the_pool_of_the_stem(draw, device):
    from fedsmoo.kernels.resnet18.stem import stem_forward
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv, n = live_conv("conv1", 3, 32, 7, 2, 8), 147 * 32
    flat, x, pooled = draw(1, n + 64), draw(1, 3, 8, 16, 4), draw(1, 3, 2, 2, 32)
    x[..., :4, :] = x[..., -4:, :] = 0
    x[0, 1, 4, 8, 2] = torch.nan
    taken = torch.zeros(pooled.shape, dtype=torch.uint8, device=device)
    stem_forward(conv, x, flat, 0, flat, n, draw(1, 3, 4, 4, 32), draw(1, 3, 2), pooled, taken, Tile(16, 32, 32, 4, 2))
    y = F.conv2d(x[0, ..., 4:-4, :3].permute(0, 3, 1, 2), flat[0, :n].view(7, 7, 3, 32).permute(3, 2, 0, 1), None, 2, 3)
    y = torch.relu(F.group_norm(y, 2, flat[0, n : n + 32], flat[0, n + 32 :]))
    same(pooled[0].permute(0, 3, 1, 2), F.max_pool2d(y, 3, 2, 1))
    assert [bool(v.isnan().all()) for v in pooled[0]] == [False, True, False]
