"""Nothing of where a vector lies in memory, or of how much memory is free, shows in what a resumed run computes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsmoo
from fedsmoo.cli import main
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.data.check import from_arrays
from fedsmoo.engines import batched, choose
from fedsmoo.engines.client_state import memory
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.train import RunSlice
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin import provenance
from fedsmoo.runs.origin.pins import machine_differences, pin_clients_at_once
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import Checkpoints, Mark, newest
from fedsmoo.version import __version__

SIZES = (1, 3, 5, 9, 14, 20, 27, 33)
TASK = Config(
    model="mlp", dtype="float64", engine="batched", device="cpu", rounds=6, cohort=2, local_steps=1, batch_size=10,
    lr=0.05, clip=0.5,
)  # fmt: skip


def small(config: Config) -> Simulation:
    """Eight clients with as many samples as ``SIZES`` says, of six numbers in three classes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((160, 6))
    y = (x @ rng.standard_normal((6, 3))).argmax(1)
    ends = np.cumsum(SIZES)
    clients = [np.arange(e - n, e) for n, e in zip(SIZES, ends, strict=True)]
    return assemble(config, data=from_arrays(x, y, x[:40], y[:40]), indices=clients)


def state(simulation: Simulation) -> dict[str, Tensor]:
    rows = {f"{i}.{n}": v for i, row in simulation.engine.table.items() for n, v in row.items()}
    return {**dict(simulation.server.items()), **rows}


def stop_and_go_on(config: Config, folder: Path, after: int) -> Simulation:
    seen: list[int] = []
    Run.begin(config, folder, small(config)).go(lambda r: seen.append(r.round), lambda: len(seen) == after)
    run = reopen(folder, simulation=small(config))
    assert len(run.simulation.history) == after
    run.go()
    return run.simulation


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fedsmoo"])
def test_a_resumed_run_has_the_same_bits_in_double_precision(method: str, tmp_path: Path) -> None:
    for seed in range(3):
        config = TASK.replace(algorithm=method, seed=seed)
        whole = small(config)
        whole.run()
        for after in (1, 4):
            resumed = state(stop_and_go_on(config, tmp_path / f"{seed}-{after}", after))
            expected = state(whole)
            assert resumed.keys() == expected.keys()
            assert [n for n in expected if not torch.equal(resumed[n], expected[n])] == []


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Makes it so that some clients fit in half of the memory; returns the list of how many trained at once."""

    def only(clients: int) -> list[int]:
        sizes: list[int] = []

        def train(runs: Sequence[RunSlice], *rest: Any) -> Any:
            sizes.append(sum(len(r.clients) for r in runs))
            return real(runs, *rest)

        client = memory.bytes_per_client(setup) + 2 * memory.activation_bytes(setup, CROWD.batch_size)
        monkeypatch.setattr(memory, "total_bytes", lambda _: 2 * clients * client + 1)
        monkeypatch.setattr(batched, "train", train)
        return sizes

    real, setup = batched.train, small(CROWD).setup
    return only


def stop_after_two(config: Config, folder: Path) -> Path:
    seen: list[int] = []
    Run.begin(config, folder, small(config)).go(lambda r: seen.append(r.round), lambda: len(seen) == 2)
    return folder


CROWD = TASK.replace(cohort=5, rounds=3, algorithm="fedavg")
CHANGED = "clients trained at once were {}, are {}: what follows may differ in the last bits"


@pytest.mark.parametrize(("first", "then"), [(3, 8), (8, 3)])
def test_as_many_clients_train_at_once_after_a_resume_whatever_the_machine_has(
    first: int, then: int, room: Callable[[int], list[int]], tmp_path: Path
) -> None:
    before = room(first)
    folder = stop_after_two(CROWD, tmp_path / "a")
    after = room(then)
    run = reopen(folder, simulation=small(CROWD))
    run.go()
    assert before == 2 * after
    assert after == ([3, 2] if first == 3 else [5])
    assert run.notes == []
    saved = newest(folder / "checkpoint")[0]
    assert saved is not None
    assert saved.about["chunk"] == min(first, 5)


def test_a_cohort_of_any_size_is_trained_as_before(room: Callable[[int], list[int]], tmp_path: Path) -> None:
    """With Bernoulli cohorts a round may have more clients than the mean."""
    config = CROWD.replace(sampling="bernoulli", cohort=3, rounds=12)
    room(8)
    folder = stop_after_two(config, tmp_path / "a")
    after = room(6)
    run = reopen(folder, simulation=small(config))
    run.go()
    assert after == [len(r.cohort) for r in run.simulation.history[2:] if r.cohort]
    assert max(after) > 3


def test_what_changes_how_many_train_at_once_is_said(room: Callable[[int], list[int]], tmp_path: Path) -> None:
    room(8)
    folder = stop_after_two(CROWD, tmp_path / "a")
    assert json.loads((folder / "started.json").read_text())["chunk"] == 5
    assert reopen(folder, simulation=small(CROWD.replace(chunk=4))).notes == [CHANGED.format(5, 4)]
    assert reopen(folder, simulation=small(CROWD.replace(chunk=7))).notes == []


def test_a_run_whose_notes_lack_how_many_trained_at_once_trains_as_many_as_fit(room: Callable[[int], Any]) -> None:
    room(3)
    run = small(CROWD)
    assert pin_clients_at_once(run, None) == []
    assert run.clients_at_once == 3


def test_a_run_without_room_goes_on_with_the_chunk_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out in the third round; the line names a chunk, which is no part of what a run is."""
    folder = stop_after_two(CROWD, tmp_path / "a")
    real = batched.train

    def train(runs: Sequence[RunSlice], *rest: Any) -> Any:
        if sum(len(r.clients) for r in runs) > 3:
            raise torch.OutOfMemoryError("no room")
        return real(runs, *rest)

    monkeypatch.setattr(batched, "train", train)
    with pytest.raises(FedsmooError, match="5 clients at once do not fit in the memory of cpu: set chunk=3"):
        reopen(folder, simulation=small(CROWD)).go()
    run = reopen(folder, simulation=small(CROWD.replace(chunk=3)))
    assert run.notes == [CHANGED.format(5, 3)]
    run.go()
    assert len(run.simulation.history) == 3
    assert json.loads((folder / "summary.json").read_text())["chunk"] == 3


def test_a_run_keeps_the_engine_it_began_with_whatever_the_rule_says_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of before, whose engine was timed, are among them."""
    config = TASK.replace(engine="auto", cohort=3, model="softmax", dataset="digits", clients=5)
    with monkeypatch.context() as before:
        before.setattr(choose, "choose", lambda *given: choose.Choice("vmap", "it was fast that day"))
        seen: list[int] = []
        Run.begin(config, tmp_path / "a").go(lambda r: seen.append(r.round), lambda: len(seen) == 2)
    assert assemble(config).engine.name == "batched"
    run = reopen(tmp_path / "a")
    assert (run.simulation.engine.name, run.simulation.engine.why) == ("vmap", "as the run began")
    assert run.notes == []


def test_restored_vectors_start_where_fresh_ones_do(tmp_path: Path) -> None:
    """However long the header of their file and the vectors before them are."""
    for size in range(1, 20):
        vectors = {n: torch.rand(size, dtype=torch.float64) for n in ("w", "a", "longer")}
        table = ClientTable(("mu",))
        table.write([0, 7, 11], Vectors(mu=torch.rand(3, size, dtype=torch.float64)))
        Checkpoints(tmp_path / str(size), {}).save(1, Vectors(**vectors), table, Mark(0, ""))
        saved = newest(tmp_path / str(size))[0]
        assert saved is not None
        restored = [v for _, v in saved.server().items()] + [row["mu"] for _, row in saved.rows()]
        assert [v.data_ptr() % 64 for v in restored] == [torch.rand(size).data_ptr() % 64] * len(restored)


def test_another_number_of_ranks_is_said_where_bits_depend_on_it() -> None:
    old = {"engine": "batched", "ranks": 2, "device": "cpu", "threads": 1, "versions": {"torch": "2"}}
    new = {**old, "ranks": 1}
    said = machine_differences(old, {**new, "config": {"exact": False}})
    assert said == ["ranks was 2, is 1: what follows may differ in the last bits"]
    assert machine_differences(old, {**new, "config": {"exact": True}}) == []


def test_other_versions_are_said_each_by_its_name() -> None:
    old = {"engine": "batched", "device": "cpu", "threads": 1, "config": {"exact": False}}
    now = {"fedsmoo": "0.2", "torch": "2.13", "python": "3.12.1", "numpy": "2.4"}
    before = {"fedsmoo": "0.1", "torch": "2.13", "python": "3.11.7", "triton": "3.6"}
    new = {**old, "versions": now}
    assert machine_differences({**old, "versions": before}, new) == [
        "fedsmoo was 0.1, is 0.2: what follows may differ in the last bits",
        "python was 3.11.7, is 3.12.1: what follows may differ in the last bits",
    ]
    assert machine_differences({**old, "versions": now}, new) == machine_differences(old, new) == []
    assert machine_differences({**old, "versions": "none"}, new) == []


def test_a_resumed_run_says_that_fedsmoo_and_python_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"rounds": 4, "clients": 5, "cohort": 2, "model": "softmax", "device": "cpu"}
    fedsmoo.run(settings, tmp_path / "run", save_every=1, callback=lambda record: record.round != 2)
    now = {**provenance.versions(), "fedsmoo": "9.9", "python": "4.0"}
    monkeypatch.setattr(provenance, "versions", lambda: now)
    with pytest.raises(SystemExit, match="0"):
        main(["resume", str(tmp_path / "run")])
    said = capsys.readouterr()
    assert f"fedsmoo was {__version__}, is 9.9: what follows may differ in the last bits" in said.err + said.out
    assert "is 4.0: what follows may differ in the last bits" in said.err + said.out
