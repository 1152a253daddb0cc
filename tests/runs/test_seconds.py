"""Whose seconds are whose: training and evaluation apart, and shares of a batch of runs that add up to the whole."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsmoo.engines.batched import Batched, SharedRounds
from fedsmoo.runs import simulation as loop
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.sweeps import pack
from fedsmoo.sweeps.pack import Pack, assemble_pack

CONFIG = Config(
    dataset="digits", model="softmax", algorithm="fedavg", clients=4, cohort=2, rounds=4, local_steps=1, batch_size=8,
    eval_every=2, device="cpu", engine="batched",
)  # fmt: skip
DRAFT, TRAIN, EVALUATE = 0.5, 3.0, 16.0  # what each takes by the clock below


class Clock:
    """Time passes only where it is spent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.patch = 1000.0, monkeypatch
        for module in (loop, pack):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def spend(self, owner: object, name: str, seconds: float) -> None:
        """Every call of a function takes so long."""
        work = getattr(owner, name)

        def slowed(*arguments, **more):
            self.now += seconds
            return work(*arguments, **more)

        self.patch.setattr(owner, name, slowed)


def test_training_and_evaluation_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock = assemble(CONFIG), Clock(monkeypatch)
    clock.spend(run, "prepare", DRAFT)
    clock.spend(run.engine, "run_round", TRAIN)
    clock.spend(run.engine, "evaluate", EVALUATE)
    history = run.run().history
    assert [r.seconds_train for r in history] == [DRAFT + TRAIN] * 4
    assert [r.seconds_eval for r in history] == [0.0, EVALUATE, 0.0, EVALUATE]
    assert sum(r.seconds_train + r.seconds_eval for r in history) == clock.now - 1000


def test_runs_in_one_batch_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is charged half of the training, which they do together, and all of its own evaluation."""
    runs, clock = assemble_pack([CONFIG.replace(seed=s) for s in (0, 1)]), Clock(monkeypatch)
    clock.spend(SharedRounds, "run_round", TRAIN)
    clock.spend(Batched, "evaluate", EVALUATE)
    first, second = (r.history for r in Pack(runs).run([None, lambda record: record.round < 2]))
    assert [r.seconds_train for r in first] == [TRAIN / 2, TRAIN / 2, TRAIN, TRAIN]  # alone after the other has left
    assert [r.seconds_train for r in second] == [TRAIN / 2, TRAIN / 2]
    assert [r.seconds_eval for r in first] == [0.0, EVALUATE, 0.0, EVALUATE]
    assert [r.seconds_eval for r in second] == [0.0, EVALUATE]
    assert sum(r.seconds_train + r.seconds_eval for r in (*first, *second)) == clock.now - 1000
