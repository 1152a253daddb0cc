"""The stem's and the last layer's kernels, on small shapes, against PyTorch's autograd in float64."""

import pytest
import torch
import torch.nn.functional as F

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.shapes import live_conv

C, B, CH, GROUPS = 2, 3, 32, 2


def close(ours, truth, rtol=2e-6):
    error = (ours.double().cpu() - truth.double().cpu()).norm() / truth.double().norm().cpu()
    assert error < rtol, f"relative error {error:.1e}"


def stem_truth(x, kernel, gamma, beta):
    """conv 7x7/2, GroupNorm, ReLU, max-pool 3x3/2 for one client; returns the convolution's and the pooled output."""
    y = F.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), stride=2, padding=3)
    pooled = F.max_pool2d(torch.relu(F.group_norm(y, GROUPS, gamma, beta)), 3, 2, 1)
    return y, pooled.permute(0, 2, 3, 1)


@pytest.mark.parametrize(
    ("side", "width", "way", "step"),
    [
        (8, 32, {}, None),
        (16, 64, {}, 4),
        (8, 256, {}, 1),
        (16, 32, {"boxes": True}, 16),
        (8, 64, {"across": True}, 2),
    ],
)
def test_stem_forward_and_backward(side, width, way, step, draw, device):
    """``width``: reduction indices of a program of the weight gradient, from one row of taps to all of them; ``way`` of
    its tile; ``step``: pooled pixels at once on the way back."""
    from fedsmoo.kernels.resnet18.conv_weight import sum_splits
    from fedsmoo.kernels.resnet18.norm import NormLayer, sum_parts
    from fedsmoo.kernels.resnet18.pool import pool_backward
    from fedsmoo.kernels.resnet18.stem import stem_forward, stem_weight
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv = live_conv("conv1", 3, CH, 7, 2, side)
    n = 147 * CH
    flat, x, d = draw(C, n + 2 * CH), draw(C, B, side, side + 8, 4), draw(C, B, side // 4, side // 4, CH)
    xhat, dy = (draw(C, B, side // 2, side // 2, CH) for _ in range(2))
    pooled, taken = draw(*d.shape), torch.full(d.shape, 77, dtype=torch.uint8, device=device)
    begin = 5  # of the shares of this norm among those of all
    rstd, part, grad = draw(C, B, GROUPS), draw(C, begin + B * 2 * CH), draw(C, n + 2 * CH)
    parts = draw(2, C, n)
    x[..., :4, :] = x[..., -4:, :] = 0
    stem_forward(conv, x, flat, 0, flat, n, xhat, rstd, pooled, taken, Tile(side**2 // 4, CH, 32, 4, 2))
    pool_backward(d, taken, NormLayer(None, xhat, rstd, flat, n, None, dy, part, begin), warps=4, step=step)
    stem_weight(conv, x, dy, parts, 0, Tile(CH, width, 16, 4, 2, **way))
    sum_splits(parts, grad, 0)
    table = [[begin + half * CH, B, 2 * CH, n + half * CH] for half in range(2)]
    sum_parts(part, torch.tensor(table, dtype=torch.int32, device=device), grad, columns=CH)
    for c in range(C):
        v = flat[c].double().cpu().requires_grad_()
        y, out = stem_truth(x[c, ..., 4:-4, :3].double().cpu(), v[:n].reshape(7, 7, 3, CH), v[n : n + CH], v[n + CH :])
        close(pooled[c], out)
        dy_truth, dv = torch.autograd.grad(out, (y, v), d[c].double().cpu())
        close(dy[c], dy_truth.permute(0, 2, 3, 1))
        close(grad[c, :n], dv[:n])
        close(grad[c, n:], dv[n:])


def test_images_that_the_stem_would_read_wrongly_are_refused(draw):
    from fedsmoo.kernels.resnet18.stem import stem_forward
    from fedsmoo.kernels.resnet18.tiles import Tile

    x, rest = draw(1, 1, 8, 8, 3), draw(1, 1, 4, 4, CH)
    with pytest.raises(FedsmooError, match="four stored channels"):
        stem_forward(
            live_conv("conv1", 3, CH, 7, 2, 8), x, draw(1, 147 * CH), 0, x, 0, rest, draw(1, 1, 2), rest, rest,
            Tile(16, CH, 32, 4, 2),
        )  # fmt: skip


@pytest.mark.parametrize("classes", [3, 10, 40])
def test_head(classes, draw, device):
    from fedsmoo.kernels.resnet18.head import head_gradient, head_logits, head_weight, padded_classes

    batch, channels, begin = 21, 64, 3
    x, p = draw(C, batch, channels), draw(C, begin + (channels + 1) * classes)
    labels = torch.arange(C * batch, device=device).reshape(C, batch) % classes
    weight = draw(C, batch).abs()
    weight[1, 5:] = 0.0
    logits, loss, dx = draw(C, batch, classes), draw(C, batch), draw(C, batch, channels)
    dlogits = draw(C, batch, padded_classes(classes))
    grad, total = draw(C, p.shape[1]), draw(C)
    head_logits(x, p, begin, logits)
    head_gradient(x, p, begin, classes, labels, weight, loss, dlogits, dx=dx)
    head_weight(x, dlogits, loss, grad, begin, classes, total)
    for c in range(C):
        v, a = p[c].double().cpu().requires_grad_(), x[c].double().cpu().requires_grad_()
        cut = begin + channels * classes
        truth = a @ v[begin:cut].reshape(channels, classes) + v[cut:]
        each = F.cross_entropy(truth, labels[c].cpu(), reduction="none") * weight[c].double().cpu()
        dv, da = torch.autograd.grad(each.sum(), (v, a))
        close(logits[c], truth)
        close(loss[c], each)
        close(total[c], each.sum())
        close(grad[c, begin:], dv[begin:])
        close(dx[c], da)
        assert (dlogits[c, :, classes:] == 0).all()


@pytest.mark.parametrize(
    ("classes", "channels", "groups", "warps"), [(3, 64, 2, 4), (10, 64, 1, 8), (17, 128, 2, 8), (32, 128, 4, 16)]
)
def test_head_passes_the_norm_before_it(classes, channels, groups, warps, draw, device):
    """The features' gradient through ReLU and GroupNorm at once is what the two kernels give one after the other."""
    from fedsmoo.kernels.resnet18.head import ROWS, head_gradient, padded_classes, passes_norm
    from fedsmoo.kernels.resnet18.norm import NormLayer, norm_backward

    batch = 21
    p, norm = draw(C, 7 + (channels + 1) * classes), draw(C, 3 + 2 * channels)
    xhat, rstd = draw(C, batch, 1, 1, channels), draw(C, batch, groups).abs()
    labels = torch.arange(C * batch, device=device).reshape(C, batch) % classes
    x, weight, (loss, other) = xhat.relu(), draw(C, batch).abs(), (draw(C, batch) for _ in range(2))
    dlogits, dlogits_too = (draw(C, batch, padded_classes(classes)) for _ in range(2))
    dx = draw(*x.shape)

    def layer():
        parts = draw(C, 5 + 2 * 2 * channels)
        return NormLayer(x, xhat, rstd, norm, 3, draw(*x.shape), draw(*x.shape), parts, 5)

    apart, fused = layer(), layer()
    assert passes_norm(classes, fused)
    assert not passes_norm(40, fused)
    features = x.view(C, batch, channels)
    head_gradient(features, p, 7, classes, labels, weight, other, dlogits, dx=dx)
    norm_backward(dx, apart, ROWS)
    head_gradient(features, p, 7, classes, labels, weight, loss, dlogits_too, before=fused, warps=warps)
    close(loss, other)
    close(dlogits_too, dlogits)
    close(fused.dz, apart.dz)
    close(fused.dy, apart.dy)
    close(fused.part[:, 5:], apart.part[:, 5:])


def test_too_many_classes_are_refused(device):
    from fedsmoo.kernels.resnet18.head import padded_classes

    with pytest.raises(FedsmooError, match="1 to 1024 classes, not 5000"):
        padded_classes(5000)
