"""Small models, all but one with a hand-batched forward: C models on C batches in a few large products.

``batched`` takes every parameter with a leading client axis. A linear layer over clients is one ``baddbmm``; a
convolution is a grouped one on a CPU, and a gather of patches with one ``bmm`` on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Parameters = Mapping[str, Tensor]
FEW_CHANNELS = 8  # with fewer, a CPU's grouped convolution is slower than patches


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    """``x [C, B, in]`` through C linear layers."""
    return torch.baddbmm(p[f"{name}.bias"].unsqueeze(1), x, p[f"{name}.weight"].transpose(1, 2))


def conv(p: Parameters, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
    """``x [C, B, in, H, W]`` through C convolutions, in the way that is fastest where it runs."""
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    by_groups = not x.is_cuda and weight.shape[2] >= FEW_CHANNELS
    out = (grouped if by_groups else patches)(weight, x, padding, stride)
    return out if bias is None else out + bias[:, None, :, None, None]


def grouped(weight: Tensor, x: Tensor, padding: int, stride: int) -> Tensor:
    """Convolve with one group per client: fast on a CPU if groups have enough channels."""
    side_by_side = x.transpose(0, 1).flatten(1, 2)
    out = F.conv2d(side_by_side, weight.flatten(0, 1), padding=padding, stride=stride, groups=len(x))
    return out.unflatten(1, (len(x), -1)).transpose(0, 1)


def patches(weight: Tensor, x: Tensor, padding: int, stride: int) -> Tensor:
    """Return all patches times the weights, one product a client: what a GPU does best."""
    c, b, _, h, w = x.shape
    k = weight.shape[-1]
    size = (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1
    if x.is_cuda:
        columns = taps(F.pad(x, (padding,) * 4), k, stride, size)
    else:
        columns = F.unfold(x.flatten(0, 1), k, padding=padding, stride=stride).unflatten(0, (c, b))
    columns = columns.transpose(1, 2).flatten(2)  # [C, in*k*k, B*L]
    return torch.bmm(weight.flatten(2), columns).unflatten(2, (b, *size)).transpose(1, 2)


def taps(x: Tensor, k: int, stride: int, size: tuple[int, int]) -> Tensor:
    """Return the patches of padded images ``[C, B, in, H, W]``, ``[C, B, in*k*k, L]``, as one slice for each tap.

    Compiled for a GPU, the gradient of ``F.unfold`` adds by atomics, in an order that is never the same; that of slices
    adds in theirs.
    """
    ends = (size[0] - 1) * stride + 1, (size[1] - 1) * stride + 1
    found = [x[..., i : i + ends[0] : stride, j : j + ends[1] : stride] for i in range(k) for j in range(k)]
    return torch.stack(found, 3).flatten(4).flatten(2, 3)


def group_norm(p: Parameters, name: str, x: Tensor, groups: int) -> Tensor:
    """GroupNorm of ``[C, B, ch, H, W]`` with C sets of scales and shifts."""
    y = F.group_norm(x.flatten(0, 1), groups).unflatten(0, x.shape[:2])
    return torch.addcmul(p[f"{name}.bias"][:, None, :, None, None], y, p[f"{name}.weight"][:, None, :, None, None])


def pool(x: Tensor, k: int = 2) -> Tensor:
    return F.max_pool2d(x.flatten(0, 1), k).unflatten(0, x.shape[:2])


class Softmax(nn.Module):
    """Softmax regression: one linear layer on the flattened input."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))

    def batched(self, p: Parameters, x: Tensor) -> Tensor:
        return linear(p, "fc", x.flatten(2))


class MLP(nn.Module):
    """Two hidden layers with ReLU on the flattened input."""

    def __init__(self, features: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(features, hidden),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))

    def batched(self, p: Parameters, x: Tensor) -> Tensor:
        return linear(p, "fc3", F.relu(linear(p, "fc2", F.relu(linear(p, "fc1", x.flatten(2))))))


class CNN(nn.Module):
    """Two 5x5 convolutions of 64 channels with 2x2 max-pooling, and a 384-192 head; PyTorch's own initialisation."""

    def __init__(self, channels: int, side: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 64, 5), nn.Conv2d(64, 64, 5)
        after = ((side - 4) // 2 - 4) // 2
        if after < 1:
            raise ValueError(f"two 5x5 convolutions with pooling need images of at least 16x16, not {side}x{side}")
        self.fc1, self.fc2, self.fc3 = nn.Linear(64 * after * after, 384), nn.Linear(384, 192), nn.Linear(192, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class LeNet(CNN):
    """The same network, as the authors call it, with a hand-batched forward."""

    def batched(self, p: Parameters, x: Tensor) -> Tensor:
        x = pool(F.relu(conv(p, "conv1", x)))
        x = pool(F.relu(conv(p, "conv2", x)))
        return linear(p, "fc3", F.relu(linear(p, "fc2", F.relu(linear(p, "fc1", x.flatten(2))))))


class CNNGN(nn.Module):
    """A small CNN with GroupNorm: two 3x3 convolutions, each with a stride-2 twin, a global mean and a linear head."""

    def __init__(self, channels: int, classes: int, width: int = 16, groups: int = 2) -> None:
        super().__init__()
        self.groups = groups
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, 2 * width)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.norm3 = nn.GroupNorm(groups, 2 * width)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return self.fc(x.mean((-2, -1)))

    def batched(self, p: Parameters, x: Tensor) -> Tensor:
        x = F.relu(group_norm(p, "norm1", conv(p, "conv1", x, padding=1), self.groups))
        x = F.relu(group_norm(p, "norm2", conv(p, "conv2", x, padding=1, stride=2), self.groups))
        x = F.relu(group_norm(p, "norm3", conv(p, "conv3", x, padding=1, stride=2), self.groups))
        return linear(p, "fc", x.mean((-2, -1)))
