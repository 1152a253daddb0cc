"""What a pass, or the mode of a module, writes to: trained as a plain loop does, or refused."""

from __future__ import annotations

import pytest
import torch
from small_task import gap
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.core import FedsmooError

from .plain_loop import RADIUS, TASK, WORDS, N, Net, Words, X, Y, by_a_plain_loop, trained


class Clamped(Net):
    def middle(self, x: Tensor) -> Tensor:
        self.below.weight.data.clamp_(-0.1, 0.1)
        return self.below(x)


def test_passes_that_change_parameters_are_refused() -> None:
    """The server's own vector was changed by its clients, and by evaluations."""
    with pytest.raises(FedsmooError, match=r"^the model Words changes its parameter 'words.weight' in forward"):
        trained(Words(max_norm=1.0), x=WORDS)
    with pytest.raises(FedsmooError, match=r"^the model Clamped changes its parameter 'below.weight' in forward"):
        trained(Clamped())


class Shifted(Net):
    """Writes to its inputs, as models that normalise them in place do."""

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x.sub_(1.0).div_(2.0))


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap"])
@pytest.mark.parametrize(("method", "radius"), [("fedavg", 0.0), ("fedsam", RADIUS)])
def test_inputs_that_are_written_to_are_copies(engine: str, method: str, radius: float) -> None:
    result = trained(Shifted(), engine, method, **({"rho": radius} if radius else {}))
    truth = by_a_plain_loop(Shifted, radius)
    assert gap(result, truth) < 1e-14
    expected = F.cross_entropy(truth(X[N:].clone()), Y[N:]).item()
    assert result.history[-1].test_loss == pytest.approx(expected, rel=1e-12)


class Following(Net):
    """A frozen layer that follows a trained one, as momentum encoders do; the server's was everybody's."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.slow, self.by_data = nn.Linear(8, 8).double().requires_grad_(False), by_data

    def middle(self, x: Tensor) -> Tensor:
        if self.training and self.by_data:
            self.slow.weight.data = 0.9 * self.slow.weight.data + 0.1 * self.below.weight.data
        elif self.training:
            with torch.no_grad():
                self.slow.weight.mul_(0.9).add_(self.below.weight, alpha=0.1)
        return self.below(x) + self.slow(x)


class Replaced(Net):
    def middle(self, x: Tensor) -> Tensor:
        self.below.weight = nn.Parameter(F.normalize(self.below.weight.detach()))
        return self.below(x)


def test_passes_that_change_frozen_parameters_or_replace_some_are_refused() -> None:
    for by_data in (False, True):
        with pytest.raises(FedsmooError, match=r"^the model Following changes its parameter 'slow.weight' in forward"):
            trained(Following(by_data))
    with pytest.raises(
        FedsmooError, match=r"^the model Replaced puts another tensor in the place of its .*below.weight"
    ):
        trained(Replaced())


# -- what a module does when its mode is set


class Merged(nn.Linear):
    """LoRA as loralib writes it: its product is part of the frozen weight in eval mode. It begins as 0 there."""

    def __init__(self, up: float = 0.3) -> None:
        super().__init__(8, 8, dtype=torch.float64)
        self.weight.requires_grad_(False)
        self.down, self.up = (nn.Parameter(0.3 * torch.randn(n, dtype=torch.float64)) for n in ((2, 8), (8, 2)))
        nn.init.constant_(self.up, up) if not up else None
        self.merged = False

    def train(self, mode: bool = True) -> Merged:
        if self.merged is mode:
            self.weight.data += (-1 if mode else 1) * self.up @ self.down
        self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.merged else super().forward(x) + x @ self.down.T @ self.up.T


class FrozenInTraining(Net):
    def train(self, mode: bool = True) -> FrozenInTraining:
        self.below.requires_grad_(not mode)
        return super().train(mode)


def test_parameters_that_a_mode_changes_or_freezes_are_refused() -> None:
    """Evaluations had the frozen weight without the product; what train() froze was trained."""
    for up, mode in ((0.3, True), (0.3, False), (0.0, True)):
        net = nn.Sequential(Merged(up), nn.Linear(8, 3, dtype=torch.float64))
        with pytest.raises(
            FedsmooError, match=r"^the model Sequential changes its parameter '0.weight' in train\(\) or"
        ):
            trained(net.train(mode))
    with pytest.raises(
        FedsmooError, match=r"^the model FrozenInTraining freezes its parameter 'below.weight' in train"
    ):
        trained(FrozenInTraining())
    result, truth = trained(FrozenInTraining().train()), TASK.by_a_plain_loop(lambda: FrozenInTraining().train())
    assert gap(result, truth) < 1e-14


class OwnEval(Net):
    """Its ``eval`` does something else than ``train(False)``, and returns nothing, as users write it."""

    share = 1.0

    def train(self, mode: bool = True) -> OwnEval:
        self.share = 1.0 if mode else self.share
        return super().train(mode)

    def eval(self) -> None:  # type: ignore[override]
        self.share = 0.5
        super().eval()

    def middle(self, x: Tensor) -> Tensor:
        return self.share * self.below(x)


def test_a_module_s_own_eval_is_called() -> None:
    result, truth = trained(OwnEval()), by_a_plain_loop(OwnEval)
    truth.eval()
    expected = truth(X[N:])
    assert result.history[-1].test_loss == pytest.approx(F.cross_entropy(expected, Y[N:]).item(), rel=1e-12)
    torch.testing.assert_close(result.model(X[N:]), expected, rtol=1e-12, atol=0.0)
