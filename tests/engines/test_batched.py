"""Chunks, memory, the choice of an engine, and the client table."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsmoo.algorithms import SCAFFOLD, FedAvg, FedDyn, FedSMOO
from fedsmoo.core import FedsmooError, LocalRule, Vectors
from fedsmoo.engines import auto, memory
from fedsmoo.engines.auto import ENGINES, fastest
from fedsmoo.engines.base import Setup
from fedsmoo.engines.batched import Batched, run_packed
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.steps import eager_steps
from fedsmoo.engines.table import ClientTable
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel

from .small import dataset, largest_gap, make_setup, simulation, trace

SMOO = FedSMOO(r=0.2, beta=2.0)


class Limited:
    """An oracle with room for so many clients at once; remembers how many it was given."""

    def __init__(self, inner, room: int) -> None:
        self.inner, self.room, self.asked = inner, room, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, w: Tensor, batch):
        self.asked.append(len(w))
        if len(w) > self.room:
            raise torch.OutOfMemoryError("no room")
        return self.inner(w, batch)


def limit(engine: Batched, room: int) -> Limited:
    oracle = Limited(engine.oracle, room)
    engine.oracle, engine.steps = oracle, partial(eager_steps, oracle)
    return oracle


def test_out_of_memory_halves_the_chunk_and_changes_nothing_else() -> None:
    run = simulation("hand", "mlp", SMOO, cohort=6, sampling="uniform", rounds=2)
    oracle = limit(run.engine, room=2)
    expected = trace(simulation("serial", "mlp", SMOO, cohort=6, sampling="uniform", rounds=2))
    assert largest_gap(trace(run), expected) < 1e-10
    sizes = [size for size, _ in itertools.groupby(oracle.asked)]
    assert sizes == [6, 3, 2]  # half each time, rounded up; and the second round starts with what fitted
    assert run.engine.chunk == 2


def test_running_out_of_memory_in_a_later_chunk_writes_no_row_twice() -> None:
    """The first chunk fits and the second does not: the round starts again from the rows as they were."""
    run = simulation("chunk3", "mlp", SMOO, cohort=6, sampling="uniform", rounds=1)
    oracle = limit(run.engine, room=3)
    calls = itertools.count()
    inner = oracle.inner

    def flaky(w: Tensor, batch):
        if len(w) == 3 and next(calls) >= 12:  # clients 0, 1, 2 make 6 steps of 2 gradients; then memory runs out
            raise torch.OutOfMemoryError("no room")
        return inner(w, batch)

    run.engine.steps = partial(eager_steps, _as_oracle(flaky, inner))
    expected = trace(simulation("serial", "mlp", SMOO, cohort=6, sampling="uniform", rounds=1))
    assert largest_gap(trace(run), expected) < 1e-10
    assert run.engine.chunk == 2


def _as_oracle(f, inner):
    class Wrapped:
        def __getattr__(self, name):
            return getattr(inner, name)

        def __call__(self, w, batch):
            return f(w, batch)

    return Wrapped()


def test_not_even_one_client_fits() -> None:
    run = simulation("hand", "mlp", FedAvg(), sampling="uniform")
    limit(run.engine, room=0)
    with pytest.raises(FedsmooError, match="not even one client fits in the memory of cpu"):
        run.advance()
    assert not run.engine.table.rows


def test_bytes_of_a_client() -> None:
    """Vectors of a running client: own and local ones twice (old and new), what it sends, and five of the step."""
    setup = make_setup("softmax", FedAvg())
    assert setup.task.model.layout.size == 36 * 3 + 3
    assert memory.bytes_per_client(setup) == 111 * 8 * (1 + 5)
    assert memory.bytes_per_client(make_setup("softmax", SMOO)) == 111 * 8 * (2 * 2 + 2 * 1 + 2 + 5)
    assert memory.bytes_per_client(make_setup("softmax", SCAFFOLD())) == 111 * 8 * (2 * 1 + 2 + 5)


def test_a_cohort_is_cut_to_half_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_setup("softmax", FedAvg())
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2 * 2 * memory.bytes_per_client(setup) + 1)
    assert memory.clients_that_fit(setup) == 2
    run = simulation("hand", "softmax", FedAvg(), cohort=5, sampling="uniform", rounds=1)
    oracle = limit(run.engine, room=99)
    run.advance()
    assert set(oracle.asked) == {1, 2}
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0)
    assert memory.clients_that_fit(setup) == 1


def test_free_memory_is_a_plausible_number() -> None:
    assert 2**20 < memory.available_bytes(torch.device("cpu")) < 2**50


@pytest.mark.parametrize("model", ["mlp", "cnn_gn"])
def test_auto_chooses_an_engine_that_starts_from_nothing(model: str) -> None:
    setup = make_setup(model, SMOO)
    engine = auto.make_engine("auto", setup, None, 3, 4)
    assert engine.name in ("serial", "batched", "vmap")
    assert not engine.table.rows
    assert not engine.table.take_changes()
    table = ClientTable(setup.algorithm.own)
    assert auto.make_engine("auto", setup, None, 3, 4, table).table is table
    assert not table.rows  # the timed clients were never met


def test_auto_takes_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    for best in ("serial", "batched", "vmap"):
        monkeypatch.setattr(auto, "seconds_of_a_step", lambda e, *_, best=best: 1.0 if e.name == best else 2.0)
        assert fastest(make_setup("mlp", SMOO), None, 3, 4).name == best


class Stubborn(nn.Module):
    """Looks at its input: vmap cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) if float(x.sum()) > 0 else self.fc(x.flatten(1) + 1)


class Hopeless(nn.Module):
    """Expects other inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(35, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


def test_auto_falls_back_to_serial_where_vmap_cannot_go() -> None:
    task = Task(FlatModel(Stubborn()), dataset(), torch.device("cpu"), torch.float64)
    assert isinstance(fastest(Setup(task, FedAvg(), LocalRule()), None, 3, 4), Serial)


def test_auto_says_why_no_engine_can() -> None:
    task = Task(FlatModel(Hopeless()), dataset(), torch.device("cpu"), torch.float64)
    with pytest.raises(FedsmooError, match="no engine can run this model"):
        fastest(Setup(task, FedAvg(), LocalRule()), None, 3, 4)


def test_engines_by_name() -> None:
    setup = make_setup("mlp", FedAvg())
    for name in ("serial", "batched", "vmap"):
        assert auto.make_engine(name, setup, None, 3, 4).name == name
    assert {"auto", "serial", "batched", "vmap"} <= set(ENGINES)
    with pytest.raises(FedsmooError, match="unknown engine 'seriel': did you mean 'serial'"):
        auto.make_engine("seriel", setup, None, 3, 4)


def test_clients_of_a_model_with_random_layers_do_not_share_a_batch() -> None:
    setup = make_setup("mlp", FedAvg())
    setup.task.model.random = True
    for name in ("batched", "vmap"):
        with pytest.raises(FedsmooError, match=r"^the model MLP draws random numbers .* use engine=serial"):
            auto.make_engine(name, setup, None, 3, 4)
    assert isinstance(auto.make_engine("auto", setup, None, 3, 4), Serial)
    assert isinstance(auto.make_engine("serial", setup, None, 3, 4), Serial)


def test_a_hand_batched_forward_is_needed_to_ask_for_it() -> None:
    task = Task(FlatModel(Stubborn()), dataset(), torch.device("cpu"), torch.float64)
    with pytest.raises(FedsmooError, match="Stubborn has no hand-batched forward"):
        Batched(Setup(task, FedAvg(), LocalRule()), oracle="hand")


def test_runs_that_share_a_batch_are_the_runs_alone() -> None:
    """Three runs that differ in their numbers, their seeds and so in their cohorts; each as if it were alone."""
    made = [(FedDyn(beta=b), {"lr": lr, "seed": s}) for b, lr, s in ((2.0, 0.2, 1), (3.0, 0.1, 2), (2.5, 0.3, 3))]
    alone = [trace(simulation("serial", "mlp", a, sampling="uniform", **t)) for a, t in made]
    runs = [simulation("hand", "mlp", a, sampling="uniform", **t) for a, t in made]
    for number in range(runs[0].training.rounds):
        works = [r.prepare() for r in runs]
        outcomes = run_packed([r.engine for r in runs], works)
        for r, work, outcome, expected in zip(runs, works, outcomes, alone, strict=True):
            r.complete(work, outcome, 0.0)
            for name, v in r.server.items():
                assert torch.allclose(v, expected[number][f"server {name}"], rtol=0, atol=1e-10)
            for i, row in r.engine.table.items():
                assert torch.allclose(row["lam"], expected[number][f"client {i} lam"], rtol=0, atol=1e-10)


def test_the_table_keeps_copies_and_knows_what_changed() -> None:
    table = ClientTable(("c",))
    first = Vectors(c=torch.zeros(2))
    assert torch.equal(table.read([4, 7], first).c, torch.zeros(2, 2))
    assert not table.rows  # reading is not meeting
    me = Vectors(c=torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    table.write([4, 7], me)
    me.c.fill_(9.0)
    assert torch.equal(
        table.read([7, 5, 4], Vectors(c=torch.full((2,), 5.0))).c, torch.tensor([[3.0, 4], [5, 5], [1, 2]])
    )
    assert table.take_changes() == {4, 7}
    assert table.take_changes() == set()
    assert [i for i, _ in table.items()] == [4, 7]


def test_first_contact_rows_may_differ_between_clients() -> None:
    rows = Vectors(c=torch.tensor([[1.0], [2.0]]))
    assert torch.equal(ClientTable(("c",)).read([3, 8], rows).c, torch.tensor([[1.0], [2.0]]))


def test_losses_and_drift_by_hand() -> None:
    """One client, one step of softmax regression: the loss is the cross-entropy at w, the drift ||lr g||^2."""
    run = simulation("hand", "softmax", FedAvg(), {"clip": None}, cohort=6, sampling="uniform", local_epochs=None,
                     local_steps=1, batch_size=50)  # fmt: skip
    data, w = run.setup.task.data, run.server.w
    x, y = data.x_train.flatten(1), data.y_train
    losses, drifts = [], []
    for rows in run.indices:
        leaf = w.clone().requires_grad_()
        loss = nn.functional.cross_entropy(x[rows] @ leaf[:108].view(3, 36).T + leaf[108:], y[rows])
        (g,) = torch.autograd.grad(loss, leaf)
        losses.append(loss.item())
        drifts.append(float((0.2 * (g + 0.01 * w)).square().sum()))
    record = run.advance()
    assert record.train_loss == pytest.approx(np.mean(losses), abs=1e-12)
    assert record.drift == pytest.approx(np.mean(drifts), abs=1e-12)
