"""What is done while the device is busy: once a round, however the clients are cut; and without it all goes on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedsmoo.algorithms import SCAFFOLD, FedAvg
from fedsmoo.engines import batched
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.steps import stepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.steps.rows import copy_rows
from fedsmoo.sweeps.pack import Pack

from .opaque import Rounded
from .small import simulation, trace

EQUAL = {"cohort": 4, "sampling": "uniform", "local_epochs": None, "local_steps": 2}


@pytest.mark.parametrize("kind", ["hand", "vmap", "chunk1", "chunk3", "chunk9", "recorded"])
def test_it_is_called_once_in_a_round(kind):
    run = simulation(kind, "mlp", SCAFFOLD(), **EQUAL)
    work, calls = run.prepare(), []
    busy = run.engine.run_round(work, lambda: calls.append(len(calls)))
    assert calls == [0]
    alone = simulation(kind, "mlp", SCAFFOLD(), **EQUAL)
    plain = alone.engine.run_round(alone.prepare())
    assert torch.equal(busy.mean.w, plain.mean.w)
    assert (busy.loss, busy.drift) == (plain.loss, plain.drift)


def test_rounds_train_the_clients_that_the_seed_names():
    """A cohort hangs on the seed and the round, each in its place."""
    from fedsmoo.data.batches.cohort import cohort

    run = simulation("hand", "mlp", SCAFFOLD(), cohort=2, sampling="uniform", seed=5, rounds=3)
    found = [run.advance().cohort for _ in range(3)]
    assert found == [cohort(5, number, 6, 2) for number in range(3)]
    assert found != [cohort(number, 5, 6, 2) for number in range(3)]


@dataclass(frozen=True)
class Noted(FedAvg):
    """FedAvg that notes when clients end and when the server steps."""

    log: ClassVar[list[str]] = []

    def finish(self, w, down, me, rnd):
        self.log.append("clients end")
        return super().finish(w, down, me, rnd)

    def aggregate(self, srv, mean, rnd):
        self.log.append("server steps")
        return super().aggregate(srv, mean, rnd)


@pytest.mark.parametrize("kind", ["hand", "vmap", "recorded", "pack"])
def test_the_server_steps_before_anybody_waits_for_the_device(kind, monkeypatch):
    """Whatever brings numbers to the host waits for a GPU, which has nothing to do then but what was queued before."""

    def noted(plain):
        def read(self, *given, **more):
            Noted.log.append("wait")
            return plain(self, *given, **more)

        return read

    run = simulation("recorded" if kind == "pack" else kind, "mlp", Noted(), **EQUAL)
    advance = (lambda: Pack([run]).advance([0])) if kind == "pack" else run.advance
    advance()
    for name in ("tolist", "item", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(Tensor, name, noted(getattr(Tensor, name)))
    Noted.log.clear()
    advance()
    log = Noted.log[Noted.log.index("clients end") :]
    assert log[:3] == ["clients end", "server steps", "wait"]


@pytest.fixture
def made(monkeypatch):
    """The plans that were copied to the device so far, and whether the device was busy."""
    plans, plain, seen = [], stepper.DevicePlan, set()

    class Counted(plain):
        def __init__(self, plan, task):
            super().__init__(plan, task)
            plans.append("ahead" if "busy" in seen else "late")

    def ahead(self, clients, plan, otherwise=batched.Batched.ahead):
        seen.add("busy")
        otherwise(self, clients, plan)
        seen.clear()

    monkeypatch.setattr(batched.Batched, "ahead", ahead)
    for module in ("fedsmoo.engines.batched", "fedsmoo.engines.train"):
        monkeypatch.setattr(f"{module}.DevicePlan", Counted)
    return plans


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("hand", ["late", "ahead", "ahead"]), ("recorded", ["late", "ahead", "ahead"]), ("chunk3", ["late"] * 6)],
)
def test_a_plan_is_copied_to_the_device_once_and_ahead(kind, expected, made):
    """But where clients train some at a time."""
    trace(simulation(kind, "mlp", SCAFFOLD(), **EQUAL, rounds=3))
    assert made == expected


def test_a_plan_that_was_made_ahead_is_for_that_round_only(made):
    run, other = (simulation("hand", "mlp", SCAFFOLD(), **EQUAL, rounds=3) for _ in range(2))
    run.advance()
    run.draw_next_round()
    run._drawn.clear()  # so that it is drawn again, as another plan with the same numbers
    run.advance()
    assert made == ["late", "ahead", "ahead", "late", "ahead"]
    for _ in range(2):
        other.advance()
    assert torch.equal(run.server.w, other.server.w)


def test_runs_that_share_a_batch_have_no_plans_of_their_own(made):
    runs = [simulation("hand", "mlp", FedAvg(), **EQUAL, seed=s, rounds=2) for s in (0, 1)]
    pack = Pack(runs)
    for _ in range(2):
        pack.advance([0, 1])
    assert made == ["late", "late"]


def on_buffers(groups):
    stepper = partial(ReplayStepper, compile=False, groups=groups, passes=False)
    return lambda setup: Batched(setup, oracle=Rounded(setup.task), stepper=stepper)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("settings", [EQUAL, EQUAL | {"local_steps": None, "local_epochs": 1}])
def test_the_next_plan_lies_in_the_buffers_behind_the_steps(groups, settings):
    """Whole, or each group's part; clients that end early are not running then."""
    run = simulation(on_buffers(groups), "mlp", SCAFFOLD(), **settings)
    run.advance()
    (recording,) = run.engine.stepper.recordings.values()
    assert len(recording.groups) == groups
    _, plan = run._drawn[1]
    for group in recording.groups:
        index, count = (torch.from_numpy(v)[:, group.part] for v in (plan.index, plan.count))
        steps, clients = count.shape
        assert torch.equal(group.index[:steps, :clients], index)
        assert torch.equal(group.weight[:steps, :clients].count_nonzero(-1), count)
        if settings["local_epochs"]:
            assert torch.equal(group.running[:steps, :clients, 0], count > 0)
            assert not group.running[steps:].any()


def test_a_plan_that_is_held_is_not_that_of_another_round():
    """Rounds that are carried out again, with the plan of the one after them in the buffers, train as before."""
    run = simulation(on_buffers(1), "mlp", FedAvg(), **EQUAL)
    first, second = run.prepare(), None
    found = []
    for _ in range(2):
        found.append(run.engine.run_round(first, run.draw_next_round).mean.w)
        second = run._drawn[1]
    assert second is not None
    assert torch.equal(*found)


@pytest.mark.parametrize("clients", [1, 3])
def test_rows_that_are_one_row_are_copied_to_each(clients):
    row, one = torch.randn(7), torch.tensor(3.0)
    for rows in (row.expand(clients, 7), one.expand(clients, 7), torch.randn(clients, 7)):
        into = torch.full((clients + 1, 7), torch.nan)
        copy_rows(into[:clients], rows)
        assert torch.equal(into[:clients], rows)
        assert into[clients:].isnan().all()
