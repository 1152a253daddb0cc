"""Each convolution kernel, on small shapes, against PyTorch's autograd in float64."""

import pytest
import torch
import torch.nn.functional as F

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.shapes import live_conv

C, B, GROUPS = 2, 3, 2
# name: (inside, outside, kernel, stride, side_in): the kinds of convolution in the network, at small widths
SHAPES = {
    "3x3": (32, 32, 3, 1, 4),
    "3x3 on 2x2": (16, 32, 3, 1, 2),
    "stride 2": (32, 64, 3, 2, 4),
    "stride 2 to one pixel": (32, 32, 3, 2, 2),
    "centre tap": (32, 32, 3, 1, 1),
    "shortcut": (32, 64, 1, 2, 4),
}

POINTERS, BOXES, TURNED = {}, {"boxes": True}, {"boxes": True, "turned": True}  # ways of a tile
ACROSS = {"across": True}
CASES = [(shape, way) for shape in SHAPES for way in (POINTERS, BOXES, TURNED)]
OF_STRIDE_1 = [case for case in CASES if not case[1] or SHAPES[case[0]][3] == 1]  # by boxes


def close(ours, truth, rtol=2e-6):
    error = (ours.double().cpu() - truth.double().cpu()).norm() / truth.double().norm().cpu()
    assert error < rtol, f"relative error {error:.1e}"


def flat_of(conv, draw):
    """Random flat rows [C, n] with the stored kernel at 0 and gamma, beta right behind it; rows of 16 bytes each."""
    n = conv.taps**2 * conv.inside * conv.outside
    return draw(C, n + 2 * conv.outside + 4), n


def kernel_of(conv, flat):
    """The full kernels [C, out, in, k, k] in float64, dead taps random: they must not matter."""
    n = conv.taps**2 * conv.inside * conv.outside
    stored = flat[:, :n].double().reshape(C, conv.taps, conv.taps, conv.inside, conv.outside)
    full = torch.full((C, conv.outside, conv.inside, conv.kernel, conv.kernel), 3.0, dtype=torch.float64)
    live = slice(conv.first_tap, conv.first_tap + conv.taps)
    full[..., live, live] = stored.permute(0, 4, 3, 1, 2).cpu()
    return full


def convolve(conv, x, full):
    """Dense truth: [C, B, H, W, in] float64 -> [C, B, Ho, Wo, out]."""
    pairs = zip(x.double().cpu(), full, strict=True)
    return torch.stack(
        [F.conv2d(a.permute(0, 3, 1, 2), k, stride=conv.stride, padding=conv.kernel // 2) for a, k in pairs]
    ).permute(0, 1, 3, 4, 2)


def normalise(y, gamma, beta):
    """GroupNorm per client of [C, B, H, W, Ch]."""
    maps = [
        F.group_norm(a.permute(0, 3, 1, 2), GROUPS, g, b).permute(0, 2, 3, 1)
        for a, g, b in zip(y, gamma, beta, strict=True)
    ]
    return torch.stack(maps)


@pytest.mark.parametrize(("shape", "way"), CASES)
@pytest.mark.parametrize("shortcut", [False, True])
def test_forward(shape, way, shortcut, draw):
    from fedsmoo.kernels.resnet18.conv import conv_forward
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv = live_conv("c", *SHAPES[shape])
    flat, n = flat_of(conv, draw)
    x = draw(C, B, conv.side_in, conv.side_in, conv.inside)
    out, xhat, res = (draw(C, B, conv.side_out, conv.side_out, conv.outside) for _ in range(3))
    rstd = draw(C, B, GROUPS)
    gamma, beta = flat[:, n:].double().cpu()[:, : 2 * conv.outside].chunk(2, dim=1)
    y = convolve(conv, x, kernel_of(conv, flat))
    truth = normalise(y, gamma, beta)
    # One group per tile in one case, both in the other; 3 samples never fill the tiles.
    tile = Tile(16, conv.outside // (1 if shortcut else GROUPS), 16, 4, 2, **way)
    conv_forward(
        conv, x, flat, 0, flat, n, out, tile, residual=res if shortcut else None, relu=shortcut, xhat=xhat, rstd=rstd
    )
    close(out, torch.relu(truth + res.double().cpu()) if shortcut else truth)
    close(xhat, normalise(y, torch.ones_like(gamma), torch.zeros_like(beta)))
    grouped = y.reshape(C, B, -1, GROUPS, conv.outside // GROUPS)
    close(rstd, (grouped.var((2, 4), unbiased=False) + 1e-5).rsqrt())


@pytest.mark.parametrize(("shape", "way"), OF_STRIDE_1)
def test_data_gradient(shape, way, draw):
    from fedsmoo.kernels.resnet18.conv import conv_backward
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv = live_conv("c", *SHAPES[shape])
    flat, _ = flat_of(conv, draw)
    dy = draw(C, B, conv.side_out, conv.side_out, conv.outside)
    x = torch.zeros(C, B, conv.side_in, conv.side_in, conv.inside, dtype=torch.float64, requires_grad=True)
    (truth,) = torch.autograd.grad(convolve(conv, x, kernel_of(conv, flat)), x, dy.double().cpu())
    add, out = draw(*x.shape), draw(*x.shape)
    conv_backward(conv, dy, flat, 0, Tile(16, 16, 16, 4, 2, **way), out=out, add=add)
    close(out, truth + add.double().cpu())


def test_data_gradient_with_shortcut(draw):
    from fedsmoo.kernels.resnet18.conv import conv_backward
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv, down = live_conv("c", 32, 64, 3, 2, 4), live_conv("d", 32, 64, 1, 2, 4)
    flat, n = flat_of(conv, draw)
    flat_down, _ = flat_of(down, draw)
    both = torch.cat([flat[:, :n], flat_down], dim=1)
    dy, dy_down = draw(C, B, 2, 2, 64), draw(C, B, 2, 2, 64)
    x = torch.zeros(C, B, 4, 4, 32, dtype=torch.float64, requires_grad=True)
    y = convolve(conv, x, kernel_of(conv, flat)), convolve(down, x, kernel_of(down, flat_down))
    (truth,) = torch.autograd.grad(y, x, (dy.double().cpu(), dy_down.double().cpu()))
    out = draw(*x.shape)
    conv_backward(conv, dy, both, 0, Tile(16, 32, 32, 4, 2), out=out, dy_down=dy_down, down_off=n)
    close(out, truth)


@pytest.mark.parametrize("shape", ["3x3", "3x3 on 2x2", "centre tap"])
@pytest.mark.parametrize(("alone", "way"), [(False, POINTERS), (True, POINTERS), (False, BOXES), (False, TURNED)])
def test_gradient_through_the_layer_before(shape, alone, way, draw, device):
    """conv^T, then ReLU and GroupNorm backwards: fused in one kernel, and GroupNorm backward on its own."""
    from fedsmoo.kernels.resnet18.conv import conv_backward
    from fedsmoo.kernels.resnet18.norm import NormLayer, norm_backward, sum_parts
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv = live_conv("c", *SHAPES[shape])
    side, ch, rows = conv.side_in, conv.inside, 16
    flat, _ = flat_of(conv, draw)
    p, y = draw(C, 2 * ch), draw(C, B, side, side, ch).double().cpu().requires_grad_()
    add, dy = draw(C, B, side, side, ch), draw(C, B, conv.side_out, conv.side_out, conv.outside)
    gamma, beta = (t.contiguous().requires_grad_() for t in p.double().cpu().chunk(2, dim=1))
    z = normalise(y, gamma, beta)
    act = torch.relu(z)
    scalar = (convolve(conv, act, kernel_of(conv, flat)) * dy.double().cpu()).sum() + (act * add.double().cpu()).sum()
    dz, d_y, d_gamma, d_beta = torch.autograd.grad(scalar, (z, y, gamma, beta))
    grouped = y.detach().reshape(C, B, -1, GROUPS, ch // GROUPS)
    rstd = (grouped.var((2, 4), unbiased=False) + 1e-5).rsqrt().float().to(device)
    xhat = normalise(y.detach(), torch.ones_like(gamma), torch.zeros_like(beta)).float().to(device)
    tiles = -(-B * side * side // rows)
    part, kept, out = draw(C, 3 + tiles * 2 * ch), draw(*y.shape), draw(*y.shape)
    act32 = act.detach().float().to(device)
    layer = NormLayer(act32, xhat, rstd, p, 0, kept, out, part, 3)
    if alone:
        d_act = draw(*y.shape)
        conv_backward(conv, dy, flat, 0, Tile(rows, ch, 16, 4, 2), out=d_act, add=add)
        norm_backward(d_act, layer, rows)
    else:
        conv_backward(conv, dy, flat, 0, Tile(rows, ch, 16, 4, 2, **way), before=layer, add=add)
    close(kept, dz)
    close(out, d_y)
    grad = draw(C, 2 * ch + 5)
    table = [[3 + half * ch, tiles, 2 * ch, 5 + half * ch] for half in range(2)]
    sum_parts(part, torch.tensor(table, dtype=torch.int32, device=device), grad, columns=ch)
    close(grad[:, 5 : 5 + ch], d_gamma)
    close(grad[:, 5 + ch :], d_beta)


@pytest.mark.parametrize(("shape", "way"), [*OF_STRIDE_1, *((shape, ACROSS) for shape in SHAPES)])
@pytest.mark.parametrize("splits", [1, 3])
def test_weight_gradient(shape, way, splits, draw):
    from fedsmoo.kernels.resnet18.conv_weight import conv_weight, sum_splits
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv = live_conv("c", *SHAPES[shape])
    flat, n = flat_of(conv, draw)
    x = draw(C, B, conv.side_in, conv.side_in, conv.inside)
    dy = draw(C, B, conv.side_out, conv.side_out, conv.outside)
    full = kernel_of(conv, flat).requires_grad_()
    (truth,) = torch.autograd.grad(convolve(conv, x, full), full, dy.double().cpu())
    live = slice(conv.first_tap, conv.first_tap + conv.taps)
    parts, grad = draw(splits, C, 16 + n), draw(C, 4 + n)
    conv_weight(conv, x, dy, parts, 16, Tile(16, 32, 16, 4, 2, **way))
    sum_splits(parts[:, :, 16:], grad, 4)
    close(grad[:, 4:], truth[..., live, live].permute(0, 3, 4, 2, 1).reshape(C, -1))
    short = torch.zeros_like(grad, dtype=torch.bfloat16)  # as gradients are kept where products are bf16
    sum_splits(parts[:, :, 16:], short, 4)
    torch.testing.assert_close(short[:, 4:].float(), grad[:, 4:], rtol=2**-7, atol=0)


@pytest.mark.parametrize("tile", [(16, 32, 64, 4, 2), (16, 8, 16, 4, 2), (8, 16, 16, 4, 2)])
def test_tiles_that_would_leave_something_out_are_refused(tile, draw):
    """A step larger than the channels, half a group, and half a sample."""
    from fedsmoo.kernels.resnet18.conv import conv_forward
    from fedsmoo.kernels.resnet18.tiles import Tile

    conv = live_conv("c", *SHAPES["3x3"])
    flat, n = flat_of(conv, draw)
    x, out = draw(C, B, 4, 4, 32), draw(C, B, 4, 4, 32)
    with pytest.raises(FedsmooError, match="does not fit the forward product of c"):
        conv_forward(conv, x, flat, 0, flat, n, out, Tile(*tile))
