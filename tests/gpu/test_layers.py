"""Random, recurrent and attention layers on a GPU, all clients at once, against the serial engine on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedsmoo import simulate
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.models import make_module

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Unequal clients, whose last batches are short: what padding draws must not move what samples draw.
SETTINGS = {
    "clients": 8, "cohort": 5, "rounds": 2, "local_epochs": 1, "batch_size": 16, "partition": "dirichlet", "lr": 0.05,
    "precision": "fp32",
}  # fmt: skip


class Rows(nn.Module):
    """A layer over the rows of a digit, whose axis of samples is the first or the second, and then a linear one."""

    def __init__(self, inner: nn.Module, width: int, first: bool = True) -> None:
        super().__init__()
        self.into, self.inner, self.out, self.first = nn.Linear(8, 16), inner, nn.Linear(width, 10), first

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.tanh(self.into(x.reshape(-1, 8, 8)))
        out = self.inner(rows if self.first else rows.transpose(0, 1))
        out = out[0] if isinstance(out, tuple) else out
        return self.out(out.mean(1 if self.first else 0))


def transformer(dropout: float) -> nn.Module:
    return Rows(nn.TransformerEncoderLayer(16, 4, 32, dropout, batch_first=True), 16)


def pooling() -> nn.Module:
    """Convolutions with biases, a norm, ReLUs and pools of both kinds."""
    body = [nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, 1, 1), nn.GroupNorm(2, 16)]
    first, head = [nn.Flatten(), nn.Unflatten(1, (1, 8, 8))], [nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*first, *body, nn.ReLU(), nn.MaxPool2d(3, 2, 1), *head)


def grouping() -> nn.Module:
    """Convolutions of each channel alone, of groups of few channels, and of groups that take the place of clients."""
    body = [nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.ReLU()]
    body += [nn.Conv2d(16, 32, 3, 2, 1, groups=2, bias=False), nn.GroupNorm(2, 32), nn.ReLU()]
    body += [nn.Conv2d(32, 24, 3, 2, 1, groups=8), nn.Flatten(), nn.Linear(96, 10)]
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 8, 8)), *body)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions and pools": pooling,
    "convolutions with groups": grouping,
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)),
    "lstm with dropout": lambda: Rows(nn.LSTM(16, 8, 2, dropout=0.4), 8, first=False),
    "lstm": lambda: Rows(nn.LSTM(16, 8, batch_first=True, bidirectional=True), 16),
    "gru": lambda: Rows(nn.GRU(16, 8, 2, batch_first=True), 8),
    "transformer with dropout": lambda: transformer(0.2),
    "transformer": lambda: transformer(0.0),
}


@pytest.mark.parametrize("method", ["fedavg", "fedsmoo"])
@pytest.mark.parametrize("name", MODELS)
def test_layers_of_all_clients_on_a_gpu_are_those_of_serial_on_the_cpu(name: str, method: str) -> None:
    module = make_module(MODELS[name], 0)
    here, alone, other = (
        simulate(module, "digits", method, device=device, engine="serial", seed=seed, **SETTINGS)
        .server.w.double()
        .cpu()
        for device, seed in (("cpu", 0), ("cuda", 0), ("cpu", 1))
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs slower.*|.*performance drop.*")
        there = simulate(module, "digits", method, device="cuda", engine="vmap", **SETTINGS)
    stepper = there.simulation.engine.stepper
    assert isinstance(stepper, ReplayStepper)
    assert stepper.compile, "the step was not compiled"
    assert stepper.capture, "the step was not captured"
    found = there.server.w.double().cpu()
    assert float((found - here).abs().max()) < 2e-5
    assert float((alone - here).abs().max()) < 2e-5
    assert float((other - here).abs().max()) > 1e-3  # another seed is another model


def test_clients_on_a_gpu_draw_the_same_masks_whoever_trains_beside_them() -> None:
    module = make_module(MODELS["lstm with dropout"], 0)
    whole, parts = (
        simulate(module, "digits", "fedavg", device="cuda", engine="vmap", **SETTINGS, **more).server.w.double().cpu()
        for more in ({}, {"chunk": 2})
    )
    assert float((whole - parts).abs().max()) < 2e-5


@pytest.mark.parametrize(("make", "method"), [(pooling, "fedavg"), (pooling, "fedsmoo"), (grouping, "fedavg")])
def test_a_graph_that_runs_as_it_is_is_serial_s_and_repeats_its_bits(
    make: Callable[[], nn.Module], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large networks do: the step around the traced gradient is generated passes, nothing is compiled by PyTorch."""
    monkeypatch.setattr("fedsmoo.engines.oracles.traced.is_light", lambda graph: True)
    module = make_module(make, 0)
    here = simulate(module, "digits", method, device="cpu", engine="serial", **SETTINGS).server.w.double()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs slower.*")
        once, again = (simulate(module, "digits", method, device="cuda", engine="vmap", **SETTINGS) for _ in range(2))
    recordings = once.simulation.engine.stepper.recordings.values()
    assert all(r.cut and not r.groups[0].compiles for r in recordings)
    assert float((once.server.w.double().cpu() - here).abs().max()) < 2e-5
    assert torch.equal(once.server.w, again.server.w)
