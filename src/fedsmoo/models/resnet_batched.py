"""C live ResNet-18-GNs at once in plain PyTorch: patches and one ``bmm`` per convolution, channels last."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.kernels.resnet18.shapes import BLOCKS, STEM, Conv

Parameters = Mapping[str, Tensor]
GROUPS = 2


def forward(p: Parameters, x: Tensor) -> Tensor:
    """Return logits ``[C, B, classes]`` of C models on images ``[C, B, 3, 32, 32]``; weights are stored tap-major."""
    x = x.permute(0, 1, 3, 4, 2)
    x = max_pool(F.relu(group_norm(p, "bn1", conv(p, STEM, x))))
    for block in BLOCKS:
        shortcut = x
        if block.down is not None:
            shortcut = group_norm(p, f"{block.name}.downsample.1", conv(p, block.down, x))
        x = F.relu(group_norm(p, f"{block.name}.bn1", conv(p, block.conv1, x)))
        x = F.relu(group_norm(p, f"{block.name}.bn2", conv(p, block.conv2, x)) + shortcut)
    return torch.baddbmm(p["fc.bias"].unsqueeze(1), x.mean((2, 3)), p["fc.weight"])


def conv(p: Parameters, spec: Conv, x: Tensor) -> Tensor:
    """``x [C, B, H, W, in]`` through C convolutions with the taps that are alive."""
    c, b = x.shape[:2]
    side, s = spec.side_out, spec.stride
    reach = (side - 1) * s + spec.taps - spec.pad - spec.side_in  # how far the last tap looks past the edge
    x = F.pad(x, (0, 0, spec.pad, max(reach, 0), spec.pad, max(reach, 0)))
    span = (side - 1) * s + 1
    taps = [x[:, :, i : i + span : s, j : j + span : s] for i in range(spec.taps) for j in range(spec.taps)]
    patches = torch.cat(taps, dim=-1).reshape(c, b * side * side, -1)
    out = torch.bmm(patches, p[f"{spec.name}.weight"].flatten(1, 3))
    return out.view(c, b, side, side, -1)


def group_norm(p: Parameters, name: str, x: Tensor) -> Tensor:
    """GroupNorm over ``[H, W, channels / groups]`` with C sets of scales and shifts."""
    grouped = x.unflatten(-1, (GROUPS, -1))
    var, mean = torch.var_mean(grouped, dim=(2, 3, 5), correction=0, keepdim=True)
    y = ((grouped - mean) * torch.rsqrt(var + 1e-5)).flatten(-2)
    return y * p[f"{name}.weight"][:, None, None, None] + p[f"{name}.bias"][:, None, None, None]


def max_pool(x: Tensor) -> Tensor:
    """3x3 max-pooling with stride 2 and padding 1, channels last."""
    flat = x.flatten(0, 1).permute(0, 3, 1, 2)
    return F.max_pool2d(flat, 3, stride=2, padding=1).permute(0, 2, 3, 1).unflatten(0, x.shape[:2])
