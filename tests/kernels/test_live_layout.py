"""The live layout of ResNet-18-GN against shapes written down by hand from the architecture."""

import math

import pytest
import torch

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels import from_torchvision, live_layout, to_torchvision
from fedsmoo.kernels.resnet18.shapes import fine_offset
from fedsmoo.models.resnet import ResNet18GN


def expected_shapes(classes: int) -> dict[str, tuple[int, ...]]:
    """torchvision's resnet18 parameters in order: stem; per block conv1, bn1, conv2, bn2, downsample; fc."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), "bn1.weight": (64,), "bn1.bias": (64,)}
    for stage, (inside, width) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], start=1):
        for index in range(2):
            block = f"layer{stage}.{index}"
            shapes[f"{block}.conv1.weight"] = (width, inside if index == 0 else width, 3, 3)
            shapes[f"{block}.bn1.weight"] = shapes[f"{block}.bn1.bias"] = (width,)
            shapes[f"{block}.conv2.weight"] = (width, width, 3, 3)
            shapes[f"{block}.bn2.weight"] = shapes[f"{block}.bn2.bias"] = (width,)
            if stage > 1 and index == 0:
                shapes[f"{block}.downsample.0.weight"] = (width, inside, 1, 1)
                shapes[f"{block}.downsample.1.weight"] = shapes[f"{block}.downsample.1.bias"] = (width,)
    return shapes | {"fc.weight": (classes, 512), "fc.bias": (classes,)}


@pytest.mark.parametrize("classes", [10, 100])
def test_module_has_torchvision_names_and_shapes(classes):
    state = ResNet18GN(classes=classes).state_dict()
    assert list(state) == list(expected_shapes(classes))
    assert {n: tuple(p.shape) for n, p in state.items()} == expected_shapes(classes)


def test_parameter_counts():
    assert sum(math.prod(s) for s in expected_shapes(10).values()) == 11_181_642
    # Dead taps: 5 of 9 in layer4.0.conv1 (256 -> 512), 8 of 9 in three convolutions 512 -> 512.
    assert live_layout(10).count == 11_181_642 - 5 * 256 * 512 - 3 * 8 * 512 * 512


def test_convolutions_come_first_and_rows_are_aligned():
    layout = live_layout(7)
    names = list(expected_shapes(7))
    convolutions = [n for n in names if len(expected_shapes(7)[n]) == 4]
    assert list(layout.shapes) == convolutions + [n for n in names if n not in convolutions]
    assert fine_offset(layout) == sum(math.prod(layout.shapes[n]) for n in convolutions)
    assert layout.size % 128 == 0
    assert 0 <= layout.size - layout.count < 128
    assert (layout.join({n: torch.ones(s) for n, s in layout.shapes.items()})[layout.count :] == 0).all()


@pytest.mark.parametrize("classes", [1, 10, 100])
def test_round_trip_of_a_live_vector(classes):
    layout = live_layout(classes)
    v = torch.randn(layout.size, generator=torch.Generator().manual_seed(classes))
    v[layout.count :] = 0
    state = to_torchvision(v)
    assert {n: tuple(p.shape) for n, p in state.items()} == expected_shapes(classes)
    assert torch.equal(from_torchvision(state), v)


def test_dropping_dead_taps_leaves_the_function_alone():
    torch.manual_seed(0)
    full = ResNet18GN().double()
    live = ResNet18GN().double()
    live.load_state_dict(to_torchvision(from_torchvision(full.state_dict())))
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert torch.equal(live.state_dict()["layer4.0.conv1.weight"][:, :, 0], torch.zeros(512, 256, 3).double())
    torch.testing.assert_close(live(x), full(x), rtol=1e-12, atol=1e-12)


def test_dead_taps_have_no_gradient_and_live_ones_do():
    torch.manual_seed(1)
    net = ResNet18GN().double()
    net(torch.randn(3, 3, 32, 32, dtype=torch.float64)).square().sum().backward()
    grads = {n: p.grad for n, p in net.named_parameters()}
    kept = to_torchvision(from_torchvision(grads))
    assert all(torch.equal(kept[n], g) for n, g in grads.items())
    assert (grads["layer4.0.conv1.weight"][:, :, 1:, 1:].abs().amax((0, 1)) > 0).all()
    assert (grads["layer3.1.conv2.weight"].abs().amax((0, 1)) > 0).all()


def test_wrong_vectors_are_refused_in_words():
    with pytest.raises(FedsmooError, match="not a live ResNet-18"):
        to_torchvision(torch.zeros(5))
    state = ResNet18GN().state_dict()
    with pytest.raises(FedsmooError, match=r"no 'bn1\.bias'"):
        from_torchvision({n: p for n, p in state.items() if n != "bn1.bias"})
    with pytest.raises(FedsmooError, match=r"conv1\.weight"):
        from_torchvision(ResNet18GN(channels=1).state_dict())
