"""Losses by name and their options, against PyTorch's; and what a loss and a model must be to each other."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo import FedsmooError, simulate
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.targets import NO_LABEL
from fedsmoo.models.loss import LOSSES, cross_entropy, make_loss

SETTINGS = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1, "device": "cpu"}


class Functional(nn.Module):
    """A model whose softmax is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).softmax(-1)


def ending(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *last)


@pytest.mark.parametrize(
    ("model", "what"),
    [(ending(nn.Softmax(-1)), "a softmax"), (Functional(), "a softmax"), (ending(nn.Sigmoid()), "a sigmoid")],
)
def test_probabilities_under_cross_entropy_are_warned_of(model: nn.Module, what: str) -> None:
    with pytest.warns(FedsmooWarning, match=f"the model ends in {what}, but cross_entropy applies a softmax itself"):
        simulate(model, "digits", "fedavg", **SETTINGS)


def test_so_are_those_under_pytorch_s_cross_entropy() -> None:
    with pytest.warns(FedsmooWarning, match="the model ends in a softmax, but cross_entropy applies a softmax itself"):
        simulate(Functional(), "digits", "fedavg", loss=nn.CrossEntropyLoss(reduction="none"), **SETTINGS)


def several_labels() -> Dataset:
    x, y = torch.randn(40, 6), (torch.rand(40, 4) < 0.4).float()
    return from_arrays(x[:30], y[:30], x[30:], y[30:], target="labels")


def own_bce(out: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy(out, y, reduction="none").mean(1)


class Probable(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sigmoid()


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(6, 4), nn.Sigmoid()), Probable(6, 4)])
def test_probabilities_of_several_labels_are_warned_of_but_under_mse(model: nn.Module) -> None:
    """A logit above 0 says a label: of probabilities all would be said."""
    with pytest.warns(FedsmooWarning, match="the model ends in a sigmoid, but bce applies a sigmoid itself"):
        simulate(model, several_labels(), "fedavg", **SETTINGS)
    with pytest.warns(FedsmooWarning, match="ends in a sigmoid, but labels are said where an output is above 0, so"):
        simulate(model, several_labels(), "fedavg", loss=own_bce, **SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        simulate(model, several_labels(), "fedavg", loss="mse", **SETTINGS)
        simulate(nn.Linear(6, 4), several_labels(), "fedavg", **SETTINGS)


class Stretched(Functional):
    """Outputs whose sum is one, as of probabilities, but some of which are negative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer.load_state_dict({"weight": torch.zeros(10, 64), "bias": torch.linspace(-1, 1, 10)})

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x) - 0.2


NOT_SQUASHED = [ending(), ending(nn.LogSoftmax(-1)), ending(nn.Tanh()), ending(nn.ReLU()), Stretched()]


@pytest.mark.parametrize("model", NOT_SQUASHED)
def test_other_models_are_not(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        simulate(model, "digits", "fedavg", **SETTINGS)


def test_nor_are_probabilities_under_a_loss_of_probabilities() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        loss = nn.NLLLoss(reduction="none")
        simulate(ending(nn.Softmax(-1)), "digits", "fedavg", loss=lambda out, y: loss(out.log(), y), **SETTINGS)


def test_logarithms_of_probabilities_train_as_logits_do() -> None:
    """Log-softmax leaves its own values as they are, so there is nothing to warn of."""
    torch.manual_seed(0)
    plain, logs = ending(), ending(nn.LogSoftmax(-1))
    logs.load_state_dict(plain.state_dict())
    results = [simulate(m, "digits", "fedavg", **SETTINGS | {"dtype": "float64", "rounds": 3}) for m in (plain, logs)]
    torch.testing.assert_close(*(r.server.w for r in results), rtol=0, atol=1e-14)


def test_losses_by_name_are_the_functions_themselves() -> None:
    """Fused kernels compute cross-entropy, and know it by being that function."""
    assert make_loss("cross_entropy") is cross_entropy is LOSSES["cross_entropy"]


def sequences() -> tuple[Tensor, Tensor]:
    """Four samples of five positions and three classes: all labelled, two of them, one of them, none."""
    generator = torch.Generator().manual_seed(0)
    out = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (4, 5), generator=generator)
    for row, labelled in enumerate((5, 2, 1, 0)):
        y[row, labelled:] = NO_LABEL
    return out.requires_grad_(), y


def test_positions_without_a_label_do_not_count_and_a_sample_without_any_costs_nothing() -> None:
    out, y = sequences()
    found = cross_entropy(out, y)
    for row, labelled in enumerate((5, 2, 1)):
        expected = F.cross_entropy(out[row, :labelled], y[row, :labelled])
        assert found[row].item() == pytest.approx(expected.item(), rel=1e-14)
    assert found[3].item() == 0.0
    (gradient,) = torch.autograd.grad(found.sum(), out)
    assert torch.equal(gradient[y == NO_LABEL], torch.zeros(12, 3, dtype=torch.float64))
    assert bool((gradient[y != NO_LABEL].abs().sum(1) > 1e-3).all())


@pytest.mark.parametrize("length", [3, 5, 7, 80])
def test_sequences_that_are_labelled_throughout_have_the_bits_of_a_plain_mean(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    out = torch.randn(6, length, 11, generator=generator).requires_grad_()
    y = torch.randint(11, (6, length), generator=generator)
    plain = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(6, length).mean(1)
    found = cross_entropy(out, y)
    assert torch.equal(found, plain)
    assert torch.equal(*(torch.autograd.grad(v.sum(), out)[0] for v in (found, plain)))


OPTIONS: list[dict[str, Any]] = [
    {"label_smoothing": 0.2},
    {"weights": [1, 2, 0.5]},
    {"weights": "1,2,0.5", "label_smoothing": 0.1, "ignore_index": 0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_are_pytorch_s(options: dict[str, Any]) -> None:
    out, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(8) % 3
    theirs = nn.CrossEntropyLoss(
        torch.tensor([1, 2, 0.5], dtype=torch.float64) if "weights" in options else None,
        ignore_index=options.get("ignore_index", -100), reduction="none",
        label_smoothing=options.get("label_smoothing", 0.0),
    )  # fmt: skip
    found = make_loss("cross_entropy", options)(out, y)
    assert torch.equal(found, theirs(out, y))
    assert float((found - cross_entropy(out, y)).abs().max()) > 0.01


def test_weights_of_classes_on_every_engine() -> None:
    """One step of all samples by each engine, against the gradient of PyTorch's loss; and by PyTorch's own module."""
    rng = np.random.default_rng(0)
    x, y, weights = rng.standard_normal((12, 4)), np.arange(12) % 3, [1.0, 5.0, 0.5]
    data = from_arrays(x, y, x, y)
    settings: dict[str, Any] = {"client_indices": [range(12)], "cohort": 1, "rounds": 1, "local_steps": 1, "lr": 0.1}
    settings |= {"batch_size": 12, "weight_decay": 0.0, "clip": None, "dtype": "float64", "device": "cpu"}
    start = simulate("softmax", data, "fedavg", **{**settings, "lr": 1e-300}).server.w
    weight, bias = (p.clone().requires_grad_() for p in (start[:12].view(3, 4), start[12:]))
    outputs = F.linear(torch.from_numpy(x), weight, bias)
    factors = torch.tensor(weights, dtype=torch.float64)
    F.cross_entropy(outputs, torch.from_numpy(y), factors, reduction="none").mean().backward()
    expected = start - 0.1 * torch.cat([weight.grad.flatten(), bias.grad])
    own = nn.CrossEntropyLoss(factors.float(), reduction="none")
    given: list[dict[str, Any]] = [{"loss_options": {"weights": weights}, "loss": "cross_entropy"}, {"loss": own}]
    for engine in ("serial", "vmap", "batched"):
        for loss in given:
            w = simulate("softmax", data, "fedavg", engine=engine, **settings, **loss).server.w
            assert float((w - expected).abs().max()) < 1e-12
    assert own.weight.dtype == torch.float32  # the caller's own module stays as it is


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"smoothing": 0.1}, "unknown option of the loss cross_entropy 'smoothing': did you mean 'label_smoothing'"),
        ({"label_smoothing": 1.0}, r"label_smoothing of the loss cross_entropy is 1.0, but must be in \[0, 1\)"),
        ({"ignore_index": 0.5}, "ignore_index of the loss cross_entropy is 0.5, but must be a whole number"),
        ({"weights": [1, -1]}, r"weights of the loss cross_entropy are \[1, -1\], but must be a number for each class"),
        ({"weights": "many"}, "weights of the loss cross_entropy are 'many'"),
        ({"weights": [1.0, 2.0]}, r"the loss cannot be computed from outputs \[2, 10\] and labels \[2\]: .*10 classes"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedsmooError, match=words) as caught:
        simulate("softmax", "digits", "fedavg", loss="cross_entropy", loss_options=options, **SETTINGS)
    assert "\n" not in str(caught.value)


def test_flipped_labels_know_the_plain_loss_only() -> None:
    options = {"loss": "cross_entropy", "loss_options": {"label_smoothing": 0.1}, "attack": "label-flip"}
    with pytest.raises(FedsmooError, match=r"label-flip knows plain .*: leave out options of the loss \(label_smoo"):
        simulate("softmax", "digits", "fedavg", **options, **SETTINGS)


SMOOTH: list[dict[str, Any]] = [
    {"label_smoothing": 0.1},
    {"loss": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)},
]


@pytest.mark.parametrize("given", SMOOTH, ids=["named", "object"])
@pytest.mark.parametrize("method", ["fedgmt", "fedlc", "fedntd", "moon"])
def test_methods_with_a_loss_of_their_own_say_that_the_run_s_is_not_trained_on(
    method: str, given: dict[str, Any]
) -> None:
    with pytest.warns(FedsmooWarning, match=r"trains on cross-entropy with more of its own: the run's loss .* only"):
        simulate("softmax", "digits", method, **SETTINGS, **given)


def test_flipped_labels_refuse_a_loss_that_is_an_object() -> None:
    with pytest.raises(
        FedsmooError, match=r"label-flip knows plain cross-entropy only: leave out the loss and its opt"
    ):
        simulate("softmax", "digits", "fedavg", attack="label-flip", **SETTINGS, **SMOOTH[1])
