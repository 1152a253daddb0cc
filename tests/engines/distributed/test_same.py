"""Ranks that do not have the same are refused before the first round: nothing later would show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BrokenBarrierError

import pytest
import torch

from fedsmoo.core import FedsmooError
from fedsmoo.engines.distributed import engine as distributed
from fedsmoo.engines.distributed.engine import Distributed
from fedsmoo.runs.build import assemble, load_data
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation

from .meeting import Meeting, Thread

CONFIG = Config(
    dataset="digits", model="softmax", algorithm="fedsmoo", clients=4, cohort=4, rounds=3, local_epochs=1,
    batch_size=100, lr=0.05, device="cpu", engine="serial",
)  # fmt: skip


def carry_out(second: Callable[[], Simulation], monkeypatch) -> list[Simulation | FedsmooError]:
    """What two ranks end with, or refuse with, the second of which has something else."""
    left: list[bool] = []
    monkeypatch.setattr(distributed, "abandon_job", lambda: left.append(True))
    meeting, runs = Meeting(), [assemble(CONFIG), second()]

    def rank(number: int) -> Simulation | FedsmooError:
        run = runs[number]
        run.engine = Distributed(run.setup, run.engine, Thread(number, meeting))
        try:
            run.run()
        except FedsmooError as e:
            return e
        return run

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(rank, range(2)))
    assert len(left) == 2 * isinstance(ends[0], FedsmooError)  # whoever refuses ends without waiting for the other
    return ends


def with_one_other_pixel() -> Simulation:
    data = load_data(CONFIG)
    x = data.x_train.clone()
    x.view(-1)[0] += 1
    return assemble(CONFIG, data=dataclasses.replace(data, x_train=x))


def a_round_ahead() -> Simulation:
    run = assemble(CONFIG)
    run.run(stop=lambda: True)
    return run


def of_another_model() -> Simulation:
    run = assemble(CONFIG)
    run.server = run.server.replace(w=run.server.w + 1e-3)
    return run


OTHERS: dict[str, tuple[Callable[[], Simulation], str]] = {
    "data": (with_one_other_pixel, "samples"),
    "a checkpoint": (a_round_ahead, r"round \(2, not 1\), .*model"),
    "vectors": (of_another_model, "model"),
    "an option": (lambda: assemble(CONFIG.replace(algorithm_options={"r": 0.3})), "method"),
    "a schedule": (lambda: assemble(CONFIG.replace(algorithm_options={"beta": "steps:10:2:0.5"})), "method"),
    "a setting": (lambda: assemble(CONFIG.replace(lr=0.06)), "settings"),
    "batches": (lambda: assemble(CONFIG.replace(batch_size=90)), "batches"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_rank_that_has_something_else_is_refused_by_both(what, monkeypatch):
    make, named = OTHERS[what]
    for end in carry_out(make, monkeypatch):
        with pytest.raises(
            FedsmooError, match=f"rank 1 has another {named}.* than rank 0. Every machine needs the same"
        ):
            raise end if isinstance(end, FedsmooError) else AssertionError("it trained")


def test_a_cohort_that_is_another_later_is_no_round(monkeypatch):
    """As where losses choose it, on machines of two kinds: both would train, and the sums be of neither cohort."""
    monkeypatch.setattr(distributed, "abandon_job", lambda: None)
    meeting = Meeting()
    runs = [assemble(CONFIG.replace(cohort=2, rounds=9)) for _ in range(2)]
    draw = runs[1].draw_round
    other = next(number for number in range(3, 99) if draw(number)[0] != draw(2)[0])
    runs[1].draw_round = lambda number: draw(other if number == 2 else number)

    def rank(number: int) -> str:
        run = runs[number]
        run.engine = Distributed(run.setup, run.engine, Thread(number, meeting))
        try:
            run.run()
        except FedsmooError as e:
            meeting.barrier.abort()  # as its connections break when it ends
            return str(e)
        except BrokenBarrierError:
            return "another rank was lost"
        return "it trained"

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    cohorts = [run.draw_round(2)[0] for run in runs]
    words = [f"round 3 at lr 0.0498002 of clients {', '.join(map(str, cohort))}" for cohort in cohorts]
    assert second == f"rank 1 waits for {words[1]!r}, but rank 0 is at {words[0]!r}"
    assert first == "another rank was lost"
    assert [len(run.history) for run in runs] == [2, 2]


def test_ranks_that_have_the_same_train(monkeypatch):
    one, other = carry_out(lambda: assemble(CONFIG), monkeypatch)
    assert len(one.history) == 3
    assert torch.equal(one.server.w, other.server.w)
