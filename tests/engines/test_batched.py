"""Chunks, memory, and the client table."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsmoo.algorithms import SCAFFOLD, FedAvg, FedDyn, FedSMOO
from fedsmoo.core import FedsmooError, LocalRule, Vectors
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.client_state import memory
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.oracles.oracle import hand_oracle
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel

from .small import dataset, largest_gap, make_setup, simulation, trace

SMOO = FedSMOO(r=0.2, beta=2.0)


class Watched:
    """A hand-batched oracle that asks a function before each gradient; remembers how many clients it was given."""

    def __init__(self, task: Task, before: Callable[[int], None]) -> None:
        self.inner, self.before, self.asked = hand_oracle(task), before, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, w: Tensor, batch):
        self.asked.append(len(w))
        self.before(len(w))
        return self.inner(w, batch)


def limited(room: int, chunk: int | None = None, batch_size: int = 1) -> Callable[[Setup], Batched]:
    """An engine whose oracle has room for so many clients at once."""

    def before(clients: int) -> None:
        if clients > room:
            raise torch.OutOfMemoryError("no room")

    return lambda setup: Batched(setup, oracle=Watched(setup.task, before), chunk=chunk, batch_size=batch_size)


def test_memory_that_runs_out_names_the_chunk_to_set_and_is_not_tried_around() -> None:
    """What is free must not decide how many train at once, on which the last bits depend."""
    run = simulation(limited(room=3), "mlp", SMOO, cohort=6, sampling="uniform", rounds=2)
    with pytest.raises(
        FedsmooError, match=r"^6 clients at once do not fit in the memory of cpu: set chunk=3, .*no room"
    ):
        run.advance()
    assert set(run.engine.oracle.asked) == {6}
    assert not run.engine.table.rows
    run = simulation(limited(room=3, chunk=3), "mlp", SMOO, cohort=6, sampling="uniform", rounds=2)
    expected = trace(simulation("serial", "mlp", SMOO, cohort=6, sampling="uniform", rounds=2))
    assert largest_gap(trace(run), expected) < 1e-10


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no room"), RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory")]
)
def test_running_out_of_memory_in_a_later_chunk_writes_no_row(error: Exception) -> None:
    """The first chunk fits and the second does not: the round can start again from the rows as they were."""
    calls = itertools.count()

    def before(clients: int) -> None:
        if next(calls) == 6:  # clients 0, 1, 2 make 3 steps of 2 gradients; then memory runs out, once
            raise error

    def engine(setup: Setup) -> Batched:
        return Batched(setup, oracle=Watched(setup.task, before), chunk=3)

    run = simulation(engine, "mlp", SMOO, cohort=6, sampling="uniform", rounds=1)
    with pytest.raises(FedsmooError, match="set chunk=2"):
        run.advance()
    assert not run.engine.table.rows
    expected = trace(simulation("serial", "mlp", SMOO, cohort=6, sampling="uniform", rounds=1))
    assert largest_gap(trace(run), expected) < 1e-10


def test_not_even_one_client_fits() -> None:
    run = simulation(limited(room=0, chunk=1), "mlp", FedAvg(), sampling="uniform")
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


def test_activations_are_what_the_backward_pass_needs() -> None:
    """The MLP keeps, in float64, its input and the outputs of its two ReLUs of six; its loss three probabilities, the
    label and the weight of each sample, and one number. Weights count as vectors."""
    setup = make_setup("mlp", FedAvg())
    assert memory.activation_bytes(setup, 4) == 8 * 4 * (36 + 6 + 6 + 3 + 1 + 1) + 8


def test_half_of_all_memory_is_for_clients_whatever_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_setup("mlp", FedAvg())
    client = memory.bytes_per_client(setup) + 2 * memory.activation_bytes(setup, 4)
    monkeypatch.setattr(memory, "total_bytes", lambda device: 2 * 2 * client + 1)
    for free in (0, 10**15):
        monkeypatch.setattr(memory, "available_bytes", lambda device, free=free: free)
        assert memory.clients_that_fit(setup, 4) == 2
    run = simulation(limited(room=99, batch_size=4), "mlp", FedAvg(), cohort=5, sampling="uniform", rounds=1)
    assert run.engine.clients_at_once == 2
    run.advance()
    assert set(run.engine.oracle.asked) == {1, 2}
    monkeypatch.setattr(memory, "total_bytes", lambda device: 0)
    assert memory.clients_that_fit(setup) == 1


def test_memory_is_a_plausible_number() -> None:
    cpu = torch.device("cpu")
    assert 2**20 < memory.available_bytes(cpu) <= memory.total_bytes(cpu) < 2**50


class Stubborn(nn.Module):
    """Looks at its input: vmap cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) if float(x.sum()) > 0 else self.fc(x.flatten(1) + 1)


def test_a_hand_batched_forward_is_needed_to_ask_for_it() -> None:
    task = Task(FlatModel(Stubborn()), dataset(), torch.device("cpu"), torch.float64)
    with pytest.raises(FedsmooError, match="Stubborn has no hand-batched forward"):
        Batched(Setup(task, FedAvg(), LocalRule()), oracle="hand")


def test_runs_that_share_a_batch_are_the_runs_alone() -> None:
    """Three runs that differ in their numbers, their seeds and so in their cohorts; each as if it were alone."""
    made = [(FedDyn(beta=b), {"lr": lr, "seed": s}) for b, lr, s in ((2.0, 0.2, 1), (3.0, 0.1, 2), (2.5, 0.3, 3))]
    alone = [trace(simulation("serial", "mlp", a, sampling="uniform", **t)) for a, t in made]
    runs = [simulation("hand", "mlp", a, sampling="uniform", **t) for a, t in made]
    batch = runs[0].engine.share([r.engine for r in runs[1:]])
    for number in range(runs[0].training.rounds):
        works = [r.prepare() for r in runs]
        outcomes = batch.run_round(dict(enumerate(works)))
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
