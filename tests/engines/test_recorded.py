"""Recorded gradients on a CPU: the bits of those that are not, whatever the model draws, keeps or recurs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsmoo import simulate
from fedsmoo.engines.oracles import recorded
from fedsmoo.engines.oracles.recorded import RecordedOracle
from fedsmoo.runs.results.result import Result

SETTINGS: dict[str, Any] = {
    "clients": 4, "cohort": 3, "rounds": 1, "local_steps": 4, "batch_size": 4, "partition": "iid", "device": "cpu",
    "engine": "vmap",
}  # fmt: skip


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((28, 4, 6)).astype("float32"), np.arange(28) % 3  # clients of 7: batches of 4 and 3
    return x, y, x[:4], y[:4]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(6, 5, 2, batch_first=True, dropout=0.3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.TransformerEncoderLayer(6, 2, 8, 0.1, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x).mean(1))


def norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(36, 3))


def trained(make: Any, after: int, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Result, RecordedOracle]:
    monkeypatch.setattr(recorded, "AFTER", after)
    torch.manual_seed(0)
    result = simulate(make(), data(), "fedavg", **{**SETTINGS, **settings})
    oracle = result.simulation.engine.oracle  # type: ignore[attr-defined]
    assert isinstance(oracle, RecordedOracle)
    return result, oracle


@pytest.mark.parametrize("make", [Recurrent, Attention, norm, convolution])
def test_recorded_gradients_have_the_same_bits(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, none = trained(make, 10**9, monkeypatch)
    early, graphs = trained(make, 1, monkeypatch)
    assert not none.graphs
    assert graphs.graphs
    assert all(graphs.graphs.values())
    assert torch.equal(plain.server.w, early.server.w)
    assert [r.train_loss for r in plain.history] == [r.train_loss for r in early.history]
    for mine, theirs in zip(early.model.buffers(), plain.model.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_once_recorded_the_model_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    _, oracle = trained(convolution, 1, monkeypatch)
    monkeypatch.setattr(oracle, "function", lambda *given: pytest.fail("the model was called"))
    (key,) = oracle.graphs
    w, x, y, weight = (torch.ones(k[0], dtype=k[2]) for k in key[1:5])
    oracle.task.model.train()
    found = oracle.gradient(w, recorded.Batch(x, y, weight))
    assert found[0].shape == w.shape


class Counting(nn.Module):
    """Is another one after a thousand calls: recorded it would stay as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = convolution(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x) * (1 + self.calls // 1000)


def test_a_model_that_keeps_count_of_its_passes_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    result, oracle = trained(Counting, 1, monkeypatch)
    assert set(oracle.graphs.values()) == {None}
    assert "changes with every pass" in result.simulation.engine.why
