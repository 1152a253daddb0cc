"""Passes that are made again in the backward pass: trained as a plain loop does, or refused."""

from __future__ import annotations

import pytest
import torch
from small_task import gap
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedsmoo.analysis.functions.objective import objective
from fedsmoo.core import FedsmooError

from .plain_loop import RADIUS, Net, by_a_plain_loop, trained


class Checkpointed(Net):
    def middle(self, x: Tensor) -> Tensor:
        return checkpoint(lambda v: torch.tanh(self.below(v)), x, use_reentrant=False)


class CheckpointedNorm(Net):
    """With statistics inside, which such a pass must not write to again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8).double()

    def middle(self, x: Tensor) -> Tensor:
        return checkpoint(lambda v: self.norm(torch.tanh(self.below(v))), x, use_reentrant=False)


class PlainNorm(CheckpointedNorm):
    def middle(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.below(x)))


@pytest.mark.parametrize("engine", ["serial", "threads", "auto"])
@pytest.mark.parametrize(("method", "radius"), [("fedavg", 0.0), ("fedsam", RADIUS)])
def test_activation_checkpointing_computes_with_the_client_s_weights(engine: str, method: str, radius: float) -> None:
    """They were those of the module before the run, from the second step on."""
    options = {"rho": radius} if radius else {}
    result = trained(Checkpointed(), engine, method, **options)
    assert gap(result, by_a_plain_loop(Checkpointed, radius)) < 1e-14
    assert result.simulation.setup.task.model.recomputes


def test_checkpointed_layers_with_statistics_are_those_without_checkpointing() -> None:
    one, other = trained(CheckpointedNorm()), trained(PlainNorm())
    assert torch.equal(one.server.statistics, other.server.statistics)
    assert torch.equal(one.server.w, other.server.w)
    assert one.simulation.setup.task.model.recomputes
    assert not other.simulation.setup.task.model.recomputes


def test_measurements_of_checkpointed_models_are_those_of_plain_ones() -> None:
    class Plain(Net):
        def middle(self, x: Tensor) -> Tensor:
            return torch.tanh(self.below(x))

    gradients = []
    for net in (Checkpointed(), Plain()):
        result = trained(net)
        task = result.simulation.setup.task
        gradients.append(objective(task).gradient(task.model.initial() + 0.1))
    assert float(gradients[1].norm()) > 0.1
    assert torch.equal(*gradients)


def test_reentrant_checkpointing_which_loses_gradients_is_refused() -> None:
    class Reentrant(Net):
        def middle(self, x: Tensor) -> Tensor:
            return checkpoint(self.below, x.requires_grad_(), use_reentrant=True)

    with pytest.raises(FedsmooError, match=r"^the model Reentrant .*use_reentrant=True.*write use_reentrant=False$"):
        trained(Reentrant())
