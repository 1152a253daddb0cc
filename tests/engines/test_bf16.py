"""bf16 on a CPU: products are rounded, losses and vectors are not. Every CPU can do it, those that have it fast."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.oracles import products
from fedsmoo.engines.oracles.oracle import single_oracle, vmap_oracle
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.files import read_json

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "clients": 4, "cohort": 4, "rounds": 2, "local_steps": 3, "batch_size": 8, "partition": "iid", "device": "cpu",
    "lr": 0.05, "clip": None, "weight_decay": 0.0, "progress": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def has_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without such instructions gives the same numbers, slowly."""
    monkeypatch.setattr(products, "cpu_has_bf16", lambda: True)


def images(n: int = 32) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, 3, 16, 16)).astype(np.float32), np.arange(n) % 3
    return x, y, x[:6], y[:6]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 3))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Tanh(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 3),
    )  # fmt: skip


class Words(nn.Module):
    """An LSTM, and attention over its states."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(48, 16, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.lstm(x.flatten(2).transpose(1, 2).reshape(len(x), 16, 48))[0]).mean(1))


def task_of(module: nn.Module, **more: Any) -> Task:
    return Task(FlatModel(module), from_arrays(*images()), CPU, **{"precision": "bf16", **more})


def test_a_linear_layer_by_hand() -> None:
    task = task_of(linear())
    w = task.model.initial()
    batch = task.batch(torch.arange(8), torch.full((8,), 1 / 8))
    parts = {n: p.clone().requires_grad_() for n, p in task.model.layout.split(w).items()}
    weight, bias = (p.bfloat16() for p in parts.values())
    out = F.linear(batch.x.flatten(1).bfloat16(), weight, bias)
    loss = F.cross_entropy(out.float(), batch.y)
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parts.values()))])
    found, value = single_oracle(task)(w, batch)
    assert found.dtype == value.dtype == torch.float32
    torch.testing.assert_close(value, loss.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(found[: len(truth)], truth, rtol=1e-6, atol=1e-7)
    exact, _ = single_oracle(dataclasses.replace(task, precision="fp32"))(w, batch)
    assert 1e-4 < (found - exact).norm() / exact.norm() < 2e-2


@pytest.mark.parametrize("make", [convolutions, Words])
def test_engines_agree_as_far_as_bf16_goes(make: Any) -> None:
    start = FlatModel(make()).initial()

    def moved(engine: str, **more: Any) -> Tensor:
        settings = {**SETTINGS, "engine": engine, "precision": "bf16", **more}
        return fedsmoo.simulate(make(), images(), "fedavg", **settings).server.w.double() - start

    truth = moved("serial", dtype="float64", precision="fp32")
    for engine in ("serial", "threads", "vmap"):
        error = (moved(engine) - truth).norm() / truth.norm()
        assert 1e-4 < error < 0.1, engine  # rounded, and no more than that


def test_methods_with_losses_of_their_own_see_whole_numbers() -> None:
    task = task_of(convolutions())
    for oracle, shape in ((single_oracle(task), ()), (vmap_oracle(task), (2,))):
        w = task.model.initial().expand(*shape, -1)
        batch = task.batch(torch.zeros(*shape, 4, dtype=torch.long), torch.full((*shape, 4), 1 / 4))
        with products.products(task):
            task.model.eval()
            outputs, features = oracle.look(w, batch, True)
        assert outputs.dtype == features.dtype == torch.float32
        assert outputs.isfinite().all()


def test_evaluation_is_rounded_too_and_its_loss_is_not() -> None:
    task = task_of(linear())
    w = task.model.initial()
    out = F.linear(task.inputs(task.data.x_test).flatten(1).bfloat16(), *(p.bfloat16() for p in split(task, w)))
    truth = F.cross_entropy(out.float(), task.data.y_test)
    assert single_oracle(task).evaluate(w).loss == pytest.approx(float(truth), rel=1e-6)


def split(task: Task, w: Tensor) -> list[Tensor]:
    return list(task.model.layout.split(w).values())


def test_float64_is_not_rounded_so_both_together_are_refused() -> None:
    with pytest.raises(FedsmooError, match="precision is bf16, but dtype is float64, whose products are not rounded"):
        task_of(linear(), dtype=torch.float64)


def test_a_cpu_without_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "cpu_has_bf16", lambda: False)
    with pytest.raises(FedsmooError, match="precision is bf16, but this CPU computes in float32: set precision"):
        task_of(linear())


def test_a_run_goes_on_in_what_it_began_with(tmp_path: Path) -> None:
    config = Config(
        algorithm="fedavg", model="softmax", clients=4, cohort=2, rounds=4, local_steps=2, engine="serial",
        precision="bf16", device="cpu",
    )  # fmt: skip
    whole = fedsmoo.run(config, tmp_path / "whole").server.w
    assert read_json(tmp_path / "whole" / "summary.json")["products"] == "bf16"
    fedsmoo.run(config, tmp_path / "cut", callback=lambda r: r.round < 2)
    assert torch.equal(fedsmoo.resume(tmp_path / "cut").server.w, whole)
    plain = fedsmoo.run(config.replace(precision="fp32"), tmp_path / "plain").server.w
    assert not torch.equal(plain, whole)
