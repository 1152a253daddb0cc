"""ResNet-18 with GroupNorm: torchvision's network, BatchNorm replaced, and the one with a 3x3 stem for CIFAR."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a shortcut: ``relu(f(x) + shortcut(x))``.

    The shortcut is a 1x1 convolution with GroupNorm where the shape changes, else the identity.
    """

    def __init__(self, inside: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.GroupNorm(groups, width)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, width, 1, stride=stride, bias=False), nn.GroupNorm(groups, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        hidden = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(hidden)) + shortcut)


class Residual18(nn.Module):
    """What both networks have behind their stems: four stages of two blocks, a mean over pixels, a linear layer."""

    def __init__(self, conv1: nn.Conv2d, classes: int, groups: int) -> None:
        super().__init__()
        self.conv1 = conv1
        # The norms keep BatchNorm's names: weights then load into torchvision's resnet18(norm_layer=...) as they are.
        self.bn1 = nn.GroupNorm(groups, WIDTHS[0])
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(WIDTHS[max(i - 1, 0)], WIDTHS[i], 1 if i == 0 else 2, groups) for i in range(4)
        )
        self.fc = nn.Linear(WIDTHS[-1], classes)

    def stem(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn1(self.conv1(x)))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, classes]`` of normalised images ``[B, channels, H, W]``."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))
        return self.fc(x.mean((2, 3)))


class ResNet18GN(Residual18):
    """ResNet-18 with the ImageNet stem and GroupNorm; parameter names and shapes are torchvision's.

    Args:
        classes: number of outputs.
        channels: channels of the image.
        groups: groups of every GroupNorm.

    >>> sum(p.numel() for p in ResNet18GN(classes=10).parameters())
    11181642

    Reference: He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016.
    """

    def __init__(self, classes: int = 10, channels: int = 3, groups: int = 2) -> None:
        super().__init__(nn.Conv2d(channels, WIDTHS[0], 7, stride=2, padding=3, bias=False), classes, groups)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stem(self, x: Tensor) -> Tensor:
        return self.maxpool(super().stem(x))


class ResNet18GNCifar(Residual18):
    """ResNet-18 with GroupNorm for images of 32x32: a 3x3 stem of stride 1, no pooling, PyTorch's own initialisation.

    The arguments are those of :class:`ResNet18GN`.

    >>> sum(p.numel() for p in ResNet18GNCifar(classes=10).parameters())
    11173962
    """

    def __init__(self, classes: int = 10, channels: int = 3, groups: int = 2) -> None:
        super().__init__(nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False), classes, groups)


def _stage(inside: int, width: int, stride: int, groups: int) -> nn.Sequential:
    first = BasicBlock(inside, width, stride, groups)
    return nn.Sequential(first, *(BasicBlock(width, width, 1, groups) for _ in range(BLOCKS_PER_STAGE - 1)))
