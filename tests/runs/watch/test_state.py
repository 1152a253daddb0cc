"""Callbacks with the state of a run: what they see, and that what they log, stop and change is kept with the run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsmoo
from fedsmoo import FedProx, FedSMOO, FedsmooError, Record, Schedule
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.watch.state import RoundState, takes_state

QUICK: dict[str, Any] = {"clients": 4, "cohort": 2, "local_steps": 2, "device": "cpu", "partition": "iid"}


def setting(after: int, **numbers: Any) -> Any:
    """A callback that changes numbers after a round."""

    def callback(record: Record, state: RoundState) -> None:
        if record.round == after:
            state.set(**numbers)

    return callback


def test_who_takes_the_state() -> None:
    assert not takes_state(lambda record: None)
    assert not takes_state(lambda record, seen=[]: None)  # a habit of closures
    assert not takes_state(print)
    assert takes_state(lambda record, state: None)
    assert takes_state(lambda record, state=None: None)
    with pytest.raises(FedsmooError, match="takes 3 arguments"):
        takes_state(lambda a, b, c: None)


def test_a_callback_sees_the_round_its_numbers_and_the_model() -> None:
    seen: list[tuple[int, int, float, float]] = []

    def callback(record: Record, state: RoundState) -> None:
        data = fedsmoo.runs.build.load_data(Config())
        with torch.no_grad():
            right = (state.model(data.x_test).argmax(1) == data.y_test).double().mean().item()
        seen.append((state.round, state.rounds, right, state.metrics["test_accuracy"]))
        assert state.history[-1] is record
        assert not state.model.training

    result = fedsmoo.simulate("softmax", "digits", "fedavg", rounds=2, callback=callback, **QUICK)
    assert [(a, b) for a, b, _, _ in seen] == [(1, 2), (2, 2)]
    for (_, _, right, said), record in zip(seen, result.history, strict=True):
        assert right == pytest.approx(said, abs=1e-6) == record.test_accuracy


def test_stop_and_false_stop_alike() -> None:
    def stopping(record: Record, state: RoundState) -> None:
        if state.round == 2:
            state.stop()

    first = fedsmoo.simulate("softmax", "digits", "fedavg", rounds=5, callback=stopping, **QUICK)
    other = fedsmoo.simulate(
        "softmax", "digits", "fedavg", rounds=5, callback=lambda record, state: state.round < 2, **QUICK
    )
    assert len(first.history) == len(other.history) == 2
    assert torch.equal(first.server.w, other.server.w)


def test_what_is_logged_lies_in_the_record_and_in_the_folder(tmp_path: Path) -> None:
    def callback(record: Record, state: RoundState) -> None:
        state.log("twice", 2 * record.round)
        state.log("norm", state.simulation.server.w.norm())
        for name, value, why in (
            ("twice", 1, "there already"),
            ("lr", 1, "there already"),
            ("x", "a", "finite number"),
        ):
            with pytest.raises(FedsmooError, match=why):
                state.log(name, value)  # type: ignore[arg-type]

    result = fedsmoo.simulate("softmax", "digits", "fedavg", rounds=2, callback=callback, out=tmp_path / "run", **QUICK)
    assert [r.probes["twice"] for r in result.history] == [2.0, 4.0]
    assert result.history[-1].probes["norm"] == pytest.approx(float(result.server.w.norm()))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["probes"]["twice"] for line in lines] == [2.0, 4.0]
    assert "changes" not in lines[0]


CHANGED: dict[str, Any] = {
    "changes": lambda record: record.changes.update(lr=0.01),  # on the disk, but not in force until it is resumed
    "cohort": lambda record: record.cohort.sort(reverse=True),
    "probes": lambda record: record.probes.update(mine=1.0),
    "metrics": lambda record: record.metrics.update(accuracy=1.0),
}


@pytest.mark.parametrize("with_the_state", [False, True])
@pytest.mark.parametrize("name", CHANGED)
def test_a_record_that_a_callback_changes_by_hand_is_refused(name: str, with_the_state: bool, tmp_path: Path) -> None:
    def looking(record: Record, state: RoundState) -> None:
        state.log("norm", 1.0)
        state.set(lr=0.05)
        CHANGED[name](record)

    callback = looking if with_the_state else CHANGED[name]
    with pytest.raises(FedsmooError, match=f"changed {name} in the record of round 1.*state.log.*state.set"):
        fedsmoo.simulate("softmax", "digits", "fedavg", rounds=3, callback=callback, **QUICK)
    config = Config(algorithm="fedavg", model="softmax", rounds=3, **QUICK)
    with pytest.raises(FedsmooError, match=f"changed {name} in the record of round 1"):
        fedsmoo.run(config, tmp_path / "run", callback=callback)
    plain = fedsmoo.run(config, tmp_path / "plain")
    assert torch.equal(fedsmoo.resume(tmp_path / "run").server.w, plain.server.w)


@pytest.mark.parametrize("engine", ["serial", "batched", "vmap"])
def test_a_changed_number_is_the_schedule_with_a_step_there(engine: str) -> None:
    settings = {**QUICK, "rounds": 4, "engine": engine}
    changed = fedsmoo.simulate("softmax", "digits", FedProx(mu=0.1), callback=setting(2, mu=5.0), **settings)
    steps = fedsmoo.simulate("softmax", "digits", FedProx(mu=Schedule(0.1, steps={2: 5.0})), **settings)
    plain = fedsmoo.simulate("softmax", "digits", FedProx(mu=0.1), **settings)
    assert torch.equal(changed.server.w, steps.server.w)
    assert not torch.equal(changed.server.w, plain.server.w)
    assert [r.changes for r in changed.history] == [{}, {"mu": 5.0}, {}, {}]


def test_a_schedule_may_take_the_place_of_another_inside_what_is_around_the_method() -> None:
    cosine = Schedule(0.2, 0.01, 4, "cosine")
    settings = {**QUICK, "rounds": 4, "compression": "topk", "compression_options": {"ratio": 0.5}}
    changed = fedsmoo.simulate("softmax", "digits", FedSMOO(r=0.1), callback=setting(1, r=cosine), **settings)
    truth = Schedule(0.1, steps={n: cosine(n) for n in (1, 2, 3)})
    steps = fedsmoo.simulate("softmax", "digits", FedSMOO(r=truth), **settings)
    assert torch.equal(changed.server.w, steps.server.w)
    assert changed.history[0].changes == {"r": "cosine:0.2:0.01:4"}


def test_a_learning_rate_that_is_set_decays_from_there_on() -> None:
    settings = {**QUICK, "rounds": 5, "lr": 0.1, "lr_decay": 0.5}
    result = fedsmoo.simulate("softmax", "digits", "fedavg", callback=setting(2, lr=0.3), **settings)
    assert [r.lr for r in result.history] == [0.1, 0.05, 0.3, 0.15, 0.075]


def test_a_learning_rate_that_is_set_is_that_of_clients_and_server() -> None:
    """Against a simulation whose settings are swapped by hand; SCAFFOLD uses the rate at clients and in finish."""
    config = Config(algorithm="scaffold", model="softmax", rounds=4, lr=0.1, lr_decay=1.0, **QUICK)
    by_hand = assemble(config)
    for number in range(4):
        by_hand.training = config if number < 2 else config.replace(lr=0.02)
        by_hand.advance()
    run = assemble(config)
    run.run(setting(2, lr=0.02))
    assert torch.equal(run.server.w, by_hand.server.w)
    assert torch.equal(run.server.c, by_hand.server.c)


def test_a_changed_run_is_resumed_with_its_changes_and_is_another_run(tmp_path: Path) -> None:
    def stopping(record: Record, state: RoundState) -> bool:
        setting(2, lr=0.01, mu=3.0)(record, state)
        return record.round < 3

    config = Config(algorithm="fedprox", model="softmax", rounds=5, **QUICK)
    whole = fedsmoo.run(config, tmp_path / "whole", callback=setting(2, lr=0.01, mu=3.0))
    fedsmoo.run(config, tmp_path / "parts", callback=stopping)
    parts = fedsmoo.resume(tmp_path / "parts")
    plain = fedsmoo.run(config, tmp_path / "plain")
    assert torch.equal(whole.server.w, parts.server.w)
    assert not torch.equal(whole.server.w, plain.server.w)
    stored = {name: read_run(tmp_path / name) for name in ("whole", "parts", "plain")}
    assert stored["whole"].identity == stored["parts"].identity != stored["plain"].identity
    assert stored["whole"].summary["changes"] == [[2, {"lr": 0.01, "mu": 3.0}]]
    assert "changes" not in stored["plain"].summary
    from fedsmoo.runs.results.finished import open_finished

    assert open_finished(tmp_path / "whole").algorithm.options()["mu"] == 3.0  # which measurements ask


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"rounds": 3}, "unknown number of a run with FedProx that a callback may change 'rounds'"),
        ({"lr": -1}, "lr is -1.0, but must be above 0"),
        ({"mu": "big"}, "mu is 'big', but must be a number or a Schedule"),
        ({"mu": -1.0}, "mu is -1.0, but must be"),
    ],
)
def test_what_cannot_be_changed_is_refused(numbers: dict[str, Any], says: str) -> None:
    with pytest.raises(FedsmooError) as e:
        fedsmoo.simulate("softmax", "digits", FedProx(), rounds=1, callback=setting(1, **numbers), **QUICK)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_records_without_changes_are_written_as_before() -> None:
    record = fedsmoo.simulate("softmax", "digits", "fedavg", rounds=1, **QUICK).history[0]
    assert "changes" not in record.values()
    changed = dataclasses.replace(record, changes={"lr": 0.1})
    assert changed.values()["changes"] == {"lr": 0.1}


def test_a_callback_looks_on_in_the_rounds_it_was_given_for_alone() -> None:
    """What it changed stays in force when the run is continued; it itself changes nothing more."""
    seen: list[int] = []

    def callback(record: Record, state: RoundState) -> None:
        seen.append(record.round)
        state.set(lr=0.5 / record.round)

    settings = QUICK | {"lr_decay": 0.5, "progress": False}
    first = fedsmoo.simulate("softmax", "digits", "fedavg", rounds=2, callback=callback, **settings)
    longer = first.continue_(2, progress=False).continue_(1, callback=lambda record: None, progress=False)
    assert seen == [1, 2]
    assert [r.lr for r in longer.history] == [0.1, 0.5, 0.25, 0.125, 0.0625]
