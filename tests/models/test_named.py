"""The networks that papers name: `cnn` and `resnet18_gn_cifar`, against what they say written out in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.data.dataset import Dataset
from fedsmoo.models import build


def images(classes: int = 10) -> Dataset:
    x = torch.randint(0, 256, (4, 32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    y = torch.arange(4) % classes
    return Dataset("images", x, y, x, y, classes, (0.5,) * 3, (0.25,) * 3)


def floats() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_they_have_as_many_parameters_as_their_layers() -> None:
    """3x3 stem; per stage a first block (with a 1x1 shortcut but in the first) and a second; norms; 512 x 10 + 10."""
    cnn = (64 * 75 + 64) + (64 * 1600 + 64) + (1600 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10)
    widths = [(64, 64), (64, 128), (128, 256), (256, 512)]
    norms = 2 * (64 + sum(4 * w for _, w in widths) + 128 + 256 + 512)
    stages = sum(9 * a * b + 3 * 9 * b * b for a, b in widths) + sum(a * b for a, b in widths[1:])
    resnet = 27 * 64 + stages + norms + 5130
    assert (cnn, resnet) == (797_962, 11_173_962)
    assert build("cnn", images(), 0).layout.size == cnn
    assert build("resnet18_gn_cifar", images(), 0).layout.size == resnet
    hundred = build("resnet18_gn_cifar", images(100), 0)
    assert hundred.layout.size == resnet + 90 * 513
    assert hundred.batched is None  # the general path


@torch.no_grad()
def test_the_cnn_is_what_papers_write() -> None:
    layers = [nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)]
    literal = nn.Sequential(*layers, nn.Flatten(), *head).double()
    flat = build("cnn", images(), 3)
    w = flat.initial().double()
    for mine, p in zip(flat.layout.split(w).values(), literal.parameters(), strict=True):
        p.data.copy_(mine)
    assert flat.batched is None
    assert float((flat.export(w).double()(floats()) - literal(floats())).abs().max()) < 1e-12
    assert torch.equal(flat.initial(), build("lenet", images(), 3).initial())  # the same network, the same start


def written_out(p: dict[str, Tensor], x: Tensor, groups: int) -> Tensor:
    """ResNet-18 for CIFAR as a list of operations on its state dict."""

    def norm(name: str, x: Tensor) -> Tensor:
        return F.group_norm(x, groups, p[f"{name}.weight"], p[f"{name}.bias"])

    x = F.relu(norm("bn1", F.conv2d(x, p["conv1.weight"], stride=1, padding=1)))
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = F.relu(norm(f"{at}.bn1", F.conv2d(x, p[f"{at}.conv1.weight"], stride=stride, padding=1)))
            y = norm(f"{at}.bn2", F.conv2d(y, p[f"{at}.conv2.weight"], padding=1))
            if stride == 2:
                x = norm(f"{at}.downsample.1", F.conv2d(x, p[f"{at}.downsample.0.weight"], stride=2))
            x = F.relu(x + y)
    return F.linear(x.flatten(2).mean(2), p["fc.weight"], p["fc.bias"])


@torch.no_grad()
def test_the_resnet_is_he_s_with_a_3x3_stem_and_no_pooling() -> None:
    flat = build("resnet18_gn_cifar", images(), 5, groups=4)
    flat.module.double()
    w = flat.initial().double()
    w = w + 0.1 * torch.randn(len(w), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert float((flat.export(w)(floats()) - written_out(flat.state_dict(w), floats(), 4)).abs().max()) < 1e-10
    shapes = [tuple(m.weight.shape) for m in flat.module.modules() if isinstance(m, nn.Conv2d)]
    assert shapes[0] == (64, 3, 3, 3)
    assert len(shapes) == 20


def test_both_start_as_pytorch_starts_layers() -> None:
    """Uniform numbers up to 1 / sqrt(fan in): their largest is close to that bound, and no larger."""
    for name in ("cnn", "resnet18_gn_cifar"):
        flat = build(name, images(), 0)
        for part, p in flat.layout.split(flat.initial()).items():
            if p.dim() > 1:
                bound = p[0].numel() ** -0.5
                assert 0.99 * bound < float(p.abs().max()) < 1.000001 * bound, part
