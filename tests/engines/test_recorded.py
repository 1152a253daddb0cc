"""Recorded gradients on a CPU: the bits of those that are not, whatever the model draws, keeps or recurs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from fedsmoo import simulate
from fedsmoo.engines.oracles import recorded
from fedsmoo.engines.oracles.recorded import RecordedOracle
from fedsmoo.operators.graph import lean as leaning
from fedsmoo.operators.graph.lean import lean, turns_to_the_bit
from fedsmoo.operators.trace import called, graph_of
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


@pytest.mark.parametrize(("name", "is_recorded"), [("lean", True), ("graph_of", False)])
def test_a_graph_that_has_other_bits_is_not_taken(
    name: str, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the lean one and of the one as it was traced."""
    made = getattr(recorded, name)

    def wrong(*given: Any) -> SimpleNamespace:
        graph = made(*given)
        return SimpleNamespace(forward=lambda *given: tuple(None if v is None else 2 * v for v in graph(*given)))

    plain, _ = trained(convolution, 10**9, monkeypatch)
    monkeypatch.setattr(recorded, "lean", lambda graph: graph)
    monkeypatch.setattr(recorded, name, wrong)
    early, oracle = trained(convolution, 1, monkeypatch)
    assert [bool(graph) for graph in oracle.graphs.values()] == [is_recorded] * len(oracle.graphs) != []
    assert torch.equal(plain.server.w, early.server.w)


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


# -- graphs with fewer calls

C, B = 3, 4  # clients, samples of each


def gradients(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradients of C networks with a hidden layer of 16 from their flat vectors ``[C, 13 * 16]``."""

    def loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        first, second = v.split([8 * 16, 5 * 16])
        return F.cross_entropy(F.relu(x @ first.view(8, 16)) @ second.view(16, 5), y)

    return vmap(grad(loss))(w, x, y)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    w, x = (torch.randn(*shape, generator=draw, dtype=dtype) for shape in ((C, 13 * 16), (C, B, 8)))
    return w, x, torch.arange(C * B).view(C, B) % 5


def by_loop(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    rows = []
    for v, a, b in zip(w, x, y, strict=True):
        parts = [p.requires_grad_() for p in (v[: 8 * 16].view(8, 16).clone(), v[8 * 16 :].view(16, 5).clone())]
        F.cross_entropy(F.relu(a @ parts[0]) @ parts[1], b).backward()
        rows.append(torch.cat([p.grad.flatten() for p in parts if p.grad is not None]))
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_lean_graph_has_the_bits_of_the_graph_and_the_numbers_of_a_loop(dtype: torch.dtype) -> None:
    graph = graph_of(gradients, *inputs(dtype))
    before = called(graph)
    short = lean(graph)
    other = tuple(v.flip(0).contiguous() for v in inputs(dtype))
    assert torch.equal(short(*other), graph(*other))
    torch.testing.assert_close(short(*other), by_loop(*other), rtol=1e-5, atol=1e-6)
    assert called(graph) == before  # what was given is as it was
    assert sum(n.op == "call_function" for n in short.graph.nodes) < 0.8 * len(before)


@pytest.mark.parametrize("places", [slice(0, C), slice(1, 1 + C)])
def test_only_the_first_input_may_not_lie_behind_others_in_memory(places: slice) -> None:
    graph = graph_of(gradients, *inputs())
    w, *others = inputs()
    behind = [torch.cat([v[:1], v, v])[places] for v in others]
    assert torch.equal(lean(graph)(w, *behind), graph(w, *behind))


def product(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b).transpose(1, 2).contiguous() + 1


@pytest.mark.parametrize("turns", [True, False])
def test_a_transposed_product_is_made_so_only_where_it_has_the_same_bits(
    turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaning, "turns_to_the_bit", lambda a, b: turns)
    a, b = torch.arange(24.0).view(2, 3, 4), torch.arange(40.0).view(2, 4, 5)
    short = lean(graph_of(product, a, b))
    assert torch.equal(short(a, b), (a @ b).mT + 1)  # small whole numbers: every order of adding has the same bits
    assert (torch.clone in {n.target for n in short.graph.nodes}) is not turns


def test_a_product_with_few_columns_stays_the_transpose_of_one_with_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaning, "turns_to_the_bit", lambda a, b: True)
    for columns, inner, stays in ((15, 50, True), (16, 50, False), (15, 49, False)):
        a, b = torch.ones(2, columns, inner), torch.ones(2, inner, 20)
        short = lean(graph_of(product, a, b))
        assert torch.equal(short(a, b), torch.full((2, 20, columns), inner + 1.0))
        assert (torch.clone in {n.target for n in short.graph.nodes}) is stays


def test_whether_bits_are_the_same_is_tried_on_numbers_of_that_form() -> None:
    a, b = torch.empty(2, 3, 5).transpose(1, 2), torch.empty(2, 3, 4)
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(v.shape, generator=draw) for v in (a, b))
    said = turns_to_the_bit(a, b)
    assert said or not torch.equal((x @ y).mT, y.mT @ x.mT)
    assert not turns_to_the_bit(a.long(), b.long())
    assert not turns_to_the_bit(torch.empty(2, 0, 3), torch.empty(2, 3, 4))


def test_calls_made_twice_are_one_and_nothing_is_multiplied_by_one() -> None:
    def wasteful(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        one = torch.ones_like(w[0]).expand(2, 3)
        return (w.exp() + w.exp()) * 1, (one * x.sin()).cos(), x.t() * 1.0 + 0, (w.int() * 1.0).cos(), one * w

    w, x = torch.arange(6.0).view(2, 3), torch.linspace(-1, 1, 6).view(2, 3)
    short = lean(graph_of(wasteful, w, x))
    for got, want in zip(short(w, x), wasteful(w, x), strict=True):
        assert torch.equal(got, want)
        assert got.data_ptr() not in (w.data_ptr(), x.data_ptr())
    names = [n.target for n in short.graph.nodes]
    assert names.count(torch.exp) == 1
    assert names.count(torch.mul) == 3  # two are results of the graph, and one makes floats of whole numbers


def test_where_something_is_written_calls_stay_as_they_are() -> None:
    def written(w: Tensor) -> tuple[Tensor, ...]:
        a, b = w.clone(), w.clone()
        a.mul_(2)
        return a + b * 1, b.sin()

    w = torch.arange(6.0).view(2, 3)
    for got, want in zip(lean(graph_of(written, w))(w), (3 * w, w.sin()), strict=True):
        assert torch.equal(got, want)


def test_views_of_written_memory_stay_as_they_are() -> None:
    def written(w: Tensor, x: Tensor) -> tuple[Any, ...]:
        y = w.clone()
        z = y.add_(x)
        return z.view(-1), y.t(), z

    w, x = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
    flat, turned, z = lean(graph_of(written, w, x))(w, x)
    assert flat.tolist() == [1, 2, 3, 4, 5, 6]
    assert turned.tolist() == (w + 1).t().tolist()
    assert torch.equal(z, w + 1)
