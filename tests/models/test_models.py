"""Models as functions of one flat vector: gradients against plain autograd, exports, and clear refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo import simulate
from fedsmoo.core import FedsmooError
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.oracles.oracle import hand_oracle, single_oracle, vmap_oracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.kernels.resnet18.shapes import from_torchvision
from fedsmoo.models import MODELS, build, make_module, model_options, wrap
from fedsmoo.models.base import FlatModel
from fedsmoo.models.live import LiveResNet
from fedsmoo.models.resnet import ResNet18GN
from fedsmoo.models.small import taps

CPU = torch.device("cpu")
SHAPES = {"softmax": (1, 5, 5), "mlp": (1, 5, 5), "lenet": (2, 16, 16), "cnn_gn": (2, 7, 7)}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def floats(shape: tuple[int, ...], classes: int = 3, n: int = 6) -> Dataset:
    x = torch.randn(n, *shape, generator=generator(), dtype=torch.float64)
    y = torch.arange(n) % classes
    return Dataset("floats", x, y, x, y, classes)


def images(n: int = 2, classes: int = 4) -> Dataset:
    x = torch.randint(0, 256, (n, 32, 32, 3), generator=generator(), dtype=torch.uint8)
    return Dataset(
        "images", x, torch.arange(n) % classes, x, torch.arange(n) % classes, classes, (0.5,) * 3, (0.25,) * 3
    )


def plain_gradient(module: nn.Module, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """The gradient of the weighted cross-entropy by ``backward`` on the module itself."""
    module.zero_grad()
    (weight * nn.functional.cross_entropy(module(x), y, reduction="none")).sum().backward()
    return {n: p.grad.clone() for n, p in module.named_parameters()}


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_three_clients_are_the_module_s_own(name: str) -> None:
    data = floats(SHAPES[name])
    flat = build(name, data, 0)
    flat.module.double()
    task = Task(flat, data, CPU, torch.float64)
    w0 = flat.initial()
    w = w0 + 0.1 * torch.randn(3, len(w0), generator=generator(1), dtype=torch.float64)
    index = torch.tensor([[0, 1], [2, 3], [4, 0]])
    weight = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)  # the second client has one sample
    batch = task.batch(index, weight)
    by_hand, by_vmap = hand_oracle(task)(w, batch), vmap_oracle(task)(w, batch)
    for c in range(3):
        expected = flat.layout.join(plain_gradient(flat.export(w[c]), batch.x[c], batch.y[c], weight[c]))
        alone = single_oracle(task)(w[c], Batch(batch.x[c], batch.y[c], batch.weight[c]))
        assert float(expected.norm()) > 1e-3
        for gradient in (by_hand[0][c], by_vmap[0][c], alone[0]):
            assert float((gradient - expected).abs().max()) < 1e-12
        assert by_hand[1][c].item() == pytest.approx(alone[1].item(), abs=1e-12)


@pytest.mark.parametrize("name", ["mlp", "cnn_gn"])
def test_frozen_parameters_are_no_part_of_the_vector_and_stay(name: str) -> None:
    data = floats(SHAPES[name])
    module = build(name, data, 0).module
    kept = next(iter(dict(module.named_parameters())))
    module.get_parameter(kept).requires_grad_(False)
    before = module.get_parameter(kept).detach().clone().double()
    flat = FlatModel(module)
    module.double()  # as a run does, after the model is wrapped
    assert kept not in flat.layout.shapes
    assert flat.full_size == flat.layout.count + before.numel()
    task = Task(flat, data, CPU, torch.float64)
    w = flat.initial() + 0.1 * torch.randn(2, flat.layout.size, generator=generator(1), dtype=torch.float64)
    batch = task.batch(torch.tensor([[0, 1], [2, 3]]), torch.full((2, 2), 0.5, dtype=torch.float64))
    by_hand, by_vmap = hand_oracle(task)(w, batch), vmap_oracle(task)(w, batch)
    for c in range(2):
        whole = flat.export(w[c])
        assert torch.equal(whole.get_parameter(kept), before)
        for p in whole.parameters():
            p.requires_grad_()
        expected = flat.layout.join(plain_gradient(whole, batch.x[c], batch.y[c], batch.weight[c]))
        alone = single_oracle(task)(w[c], Batch(batch.x[c], batch.y[c], batch.weight[c]))
        for gradient in (by_hand[0][c], by_vmap[0][c], alone[0]):
            assert float((gradient - expected).abs().max()) < 1e-12 < float(expected.norm())
    state = flat.state_dict(w[1])
    assert list(state) == list(module.state_dict())
    assert torch.equal(state[kept], before)
    assert torch.equal(flat.flatten(state), w[1])


def test_frozen_parameters_that_cannot_be_left_out_are_refused() -> None:
    whole = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(FedsmooError, match="Linear has only frozen parameters"):
        FlatModel(whole)
    resnet = ResNet18GN(4)
    resnet.conv1.requires_grad_(False)
    with pytest.raises(FedsmooError, match=r"'conv1.weight' of ResNet18GN is frozen.*module of your own"):
        LiveResNet(resnet)
    # The live layout has no place for what is frozen: such a network is taken as any other module.
    assert wrap(resnet, images()).layout.count == sum(p.numel() for p in resnet.parameters()) - 64 * 3 * 49


def test_live_resnet_s_gradient_is_the_full_network_s() -> None:
    """Two clients of two images through the hand-batched live network, against nn.Module's backward in float64."""
    data = images()
    module = make_module(lambda: ResNet18GN(4), 0).double()
    flat = wrap(module, data)
    assert isinstance(flat, LiveResNet)
    task = Task(flat, data, CPU, torch.float64)
    w0 = flat.initial()
    w = torch.stack([w0, w0 + 0.01 * torch.randn(len(w0), generator=generator(1), dtype=torch.float64)])
    batch = task.batch(torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64))
    gradients, losses = hand_oracle(task)(w, batch)
    for c in range(2):
        full = plain_gradient(flat.export(w[c]), batch.x[c], batch.y[c], batch.weight[c])
        expected = from_torchvision(full)
        assert float(expected.norm()) > 0.1
        assert float((gradients[c] - expected).abs().max()) < 1e-10 * float(expected.abs().max())
    assert torch.isfinite(losses).all()


def test_resnet_of_another_shape_keeps_all_its_weights() -> None:
    x, y = torch.zeros(2, 32, 32, 1, dtype=torch.uint8), torch.zeros(2).long()
    small = Dataset("grey", x, y, x, y, 2, (0.5,), (0.5,))
    flat = build("resnet18_gn", small, 0)
    assert type(flat) is FlatModel
    assert flat.layout.size == flat.full_size


def test_live_resnet_exports_a_torchvision_state_dict() -> None:
    flat = build("resnet18_gn", images(), 0)
    w = flat.initial()
    state = flat.state_dict(w)
    assert set(state) == set(ResNet18GN(4).state_dict())
    assert flat.full_size == sum(p.numel() for p in state.values()) > 2 * flat.layout.size
    ResNet18GN(4).load_state_dict(state)
    assert torch.equal(flat.flatten(state), w)


@pytest.mark.parametrize("name", SHAPES)
def test_a_flat_vector_and_a_state_dict_are_the_same_model(name: str) -> None:
    flat = build(name, floats(SHAPES[name]), 0)
    w = torch.randn(flat.layout.size, generator=generator(2))
    state = flat.state_dict(w)
    assert torch.equal(flat.flatten(state), w)
    other = build(name, floats(SHAPES[name]), 1).module
    other.load_state_dict(state)
    x = torch.randn(2, *SHAPES[name], generator=generator(3))
    assert torch.equal(other(x), flat.export(w)(x))
    state[next(iter(state))].zero_()  # a copy: the vector stays
    assert torch.equal(flat.flatten(flat.state_dict(w)), w)


def test_the_seed_makes_the_model_and_the_global_generator_is_left_alone() -> None:
    data = floats((1, 5, 5))
    before = torch.random.get_rng_state()
    first, second, other = (build("mlp", data, seed).initial() for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_parameter_counts_of_the_named_models() -> None:
    """LeNet on 32x32 colour: 64*75+64, 64*1600+64, 1600*384+384, 384*192+192, 192*10+10."""
    expected = {
        "softmax": 3072 * 10 + 10,
        "mlp": 3072 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10,
        "lenet": (64 * 75 + 64) + (64 * 1600 + 64) + (1600 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10),
        "cnn_gn": 16 * 27 + 32 + 32 * 144 + 64 + 32 * 288 + 64 + 32 * 10 + 10,
    }
    data = images(classes=10)
    assert {n: build(n, data, 0).layout.size for n in expected} == expected
    assert set(expected) | {"resnet18_gn"} <= set(MODELS)


def test_instance_and_group_norm_without_statistics_are_welcome() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4))
    assert FlatModel(net).layout.size == 4 * 9 + 4 + 8 + 8


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(FedsmooError, match="Flatten has no parameters"):
        FlatModel(nn.Flatten())


def test_unknown_models_and_options_are_refused_with_the_nearest() -> None:
    with pytest.raises(FedsmooError, match="unknown model 'lenett': did you mean 'lenet'"):
        build("lenett", floats((1, 5, 5)), 0)
    with pytest.raises(FedsmooError, match="unknown option of the model mlp 'hiden': did you mean 'hidden'"):
        build("mlp", floats((1, 5, 5)), 0, hiden=3)
    with pytest.raises(FedsmooError, match=r"^the model softmax has no options: leave out hidden, depth$"):
        build("softmax", floats((1, 5, 5)), 0, hidden=3, depth=2)
    assert model_options("mlp") == {"hidden": 64}


def test_an_image_model_says_that_it_takes_images() -> None:
    with pytest.raises(FedsmooError, match="takes images"):
        build("cnn_gn", floats((5,)), 0)


SIZES = [(name, option) for name in MODELS for option in model_options(name)]


@pytest.mark.parametrize("wrong", [0, -1, 2.5, 2.0, "64", True, None, math.nan], ids=str)
@pytest.mark.parametrize(("name", "option"), SIZES)
def test_sizes_of_a_model_are_whole_numbers_above_0(name: str, option: str, wrong: Any) -> None:
    """A hidden layer of no units trained before, to what the last bias alone can say."""
    data = floats((1, 8, 8))
    with pytest.raises(FedsmooError, match=f"^{option} of the model {name} is .*, but must be a whole number above 0$"):
        build(name, data, 0, **{option: wrong})


def test_groups_have_to_divide_the_channels() -> None:
    for name, options in (("cnn_gn", {"groups": 3}), ("cnn_gn", {"width": 5}), ("resnet18_gn", {"groups": 3})):
        with pytest.raises(FedsmooError, match=f"the model {name} cannot be built with .*divisible"):
            build(name, floats((1, 8, 8)), 0, **options)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("lenet", (1, 8, 8), {}),
        ("cnn_gn", (1, 8, 8), {"width": 3}),
        ("cnn_gn", (1, 8, 8), {"groups": 0}),
        ("mlp", (1, 8, 8), {"hidden": -1}),
        ("mlp", (1, 8, 8), {"hidden": "wide"}),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_built_says_so_in_one_line(name: str, shape: tuple[int, ...], options: dict) -> None:
    with pytest.raises(FedsmooError) as caught:
        build(name, floats(shape), 0, **options)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_beyond_the_outputs_are_refused_in_one_line() -> None:
    x, y = torch.randn(12, 6, generator=generator()), torch.arange(12) % 3
    for labels in ((y, y + 4), (y + 4, y)):
        data = from_arrays(x, labels[0], x, labels[1])
        with pytest.raises(FedsmooError, match=r"^the model has 3 outputs, but the labels .* go up to 6: it needs 7"):
            simulate(nn.Linear(6, 3), data, clients=2, partition="iid", rounds=1)


def test_a_class_instead_of_a_module_gets_a_hint() -> None:
    with pytest.raises(FedsmooError, match=r"must be an nn\.Module or a model's name: write Linear\(\.\.\.\)"):
        simulate(nn.Linear, rounds=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("k", "padding", "stride"), [(3, 1, 1), (3, 1, 2), (5, 0, 1), (2, 0, 3)])
def test_taps_are_the_patches_of_unfold(k: int, padding: int, stride: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, 9, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    size = (9 + 2 * padding - k) // stride + 1, (8 + 2 * padding - k) // stride + 1
    want = F.unfold(x.flatten(0, 1), k, padding=padding, stride=stride).unflatten(0, (2, 3))
    found = taps(F.pad(x, (padding,) * 4), k, stride, size)
    assert torch.equal(found, want)
    dy = torch.randn(found.shape, generator=draw, dtype=torch.float64)
    (by_slices,), (by_unfold,) = (torch.autograd.grad(y, x, dy) for y in (found, want))
    assert torch.allclose(by_slices, by_unfold, rtol=0, atol=1e-14)
