"""Runs of a sweep that cannot begin, cannot go on, or do not fit in one batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsmoo.core import FedsmooError
from fedsmoo.engines import batched, choose
from fedsmoo.runs.config import Config
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.checkpoint import newest
from fedsmoo.runs.storage.files import read_json
from fedsmoo.runs.storage.lease import LEASE, acquire
from fedsmoo.runs.storage.names import CHECKPOINT, FAILED, STARTED, SUMMARY
from fedsmoo.runs.storage.reader import state
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.queue import Worker, execute, work

TINY = Config(
    algorithm="scaffold", model="softmax", rounds=3, local_steps=1, clients=6, cohort=2, engine="batched", device="cpu"
)


def error_in(folder: Path) -> str:
    return json.loads((folder / FAILED).read_text())["error"]


@pytest.mark.parametrize("pack", [1, 2])
def test_a_run_that_cannot_begin_does_not_stop_the_others(pack: int, tmp_path: Path) -> None:
    bad, good = TINY.replace(cohort=20), TINY.replace(seed=1)
    said: list[str] = []
    worker = Worker(pack=pack, failed=lambda c, p, why: said.append(why))
    report = work([bad, good], tmp_path, worker)
    assert report.finished == [tmp_path / run_name(good)]
    assert list(report.failed) == [tmp_path / run_name(bad)]
    assert said == [error_in(tmp_path / run_name(bad))]
    assert "a cohort of 20 out of 6 clients" in said[0]
    work([bad, good], tmp_path, worker)
    assert len(said) == 1
    work([bad, good], tmp_path, Worker(retry=True, failed=lambda c, p, why: said.append(why)))
    assert len(said) == 2


def test_what_failed_to_begin_begins_when_the_reason_is_gone(tmp_path: Path) -> None:
    config = TINY.replace(split=str(tmp_path / "absent.json"))
    root = tmp_path / "runs"
    assert "no such file" in next(iter(work([config], root, Worker()).failed.values()))
    folder = root / run_name(config)
    good = TINY.replace(seed=3)
    folder.rename(root / run_name(good))  # as if the file had come back
    work([good], root, Worker())
    assert state(root / run_name(good)) == "failed"  # not without being asked
    assert work([good], root, Worker(retry=True)).finished == [root / run_name(good)]
    assert not (root / run_name(good) / FAILED).exists()


@pytest.mark.parametrize("pack", [1, 2])
def test_another_run_in_the_folder_is_not_taken_for_the_one_asked_for(pack: int, tmp_path: Path) -> None:
    config, good = TINY, TINY.replace(seed=1)
    Run.begin(config.replace(lr=0.5), tmp_path / run_name(config))
    report = work([config, good], tmp_path, Worker(pack=pack, note=lambda line: None))
    assert report.finished == [tmp_path / run_name(good)]
    assert "holds another run (lr was 0.5, is 0.1)" in report.failed[tmp_path / run_name(config)]


@pytest.mark.parametrize("pack", [1, 2])
def test_a_damaged_checkpoint_does_not_stop_the_others(pack: int, tmp_path: Path) -> None:
    bad, good = TINY, TINY.replace(seed=1)
    rounds: list[int] = []
    stop = lambda: len(rounds) > 1  # noqa: E731
    work([bad], tmp_path, Worker(watch=lambda c, r: rounds.append(r.round), stop=stop, save_every=1))
    manifests = list((tmp_path / run_name(bad) / CHECKPOINT).glob("*.json"))
    assert manifests
    for path in manifests:
        path.write_text("x")
    report = work([bad, good], tmp_path, Worker(pack=pack))
    assert report.finished == [tmp_path / run_name(good)]
    assert "no checkpoint of" in error_in(tmp_path / run_name(bad))
    assert not (tmp_path / run_name(bad) / SUMMARY).exists()


@pytest.mark.parametrize("pack", [1, 2])
def test_what_was_odd_when_a_run_was_reopened_is_said(pack: int, tmp_path: Path) -> None:
    configs, rounds = [TINY, TINY.replace(seed=1)], []
    folder = tmp_path / run_name(TINY)
    Run.begin(TINY, folder).go(callback=rounds.append, stop=lambda: len(rounds) == 2, save_every=1)
    (folder / CHECKPOINT / "000002.json").write_text("x")
    notes: list[str] = []
    assert len(work(configs, tmp_path, Worker(pack=pack, note=notes.append)).finished) == 2
    assert notes[0].startswith(f"{folder.name}: checkpoint of round 2 cannot be used")
    other = f"{folder.name}: packed was 1, is 2: what follows may differ in the last bits"
    assert notes[1:] == ([other] if pack == 2 else [])


def test_a_batch_goes_on_with_the_engine_of_the_run_that_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picks = ["vmap"]  # whatever the rule says
    monkeypatch.setattr(choose, "choose", lambda *given: choose.Choice(picks[0], "so"))
    configs = [TINY.replace(engine="auto", model="mlp", seed=s) for s in (0, 1)]
    folders = [tmp_path / run_name(c) for c in configs]
    Run.begin(configs[0], folders[0])
    picks[0] = "batched"
    notes: list[str] = []
    work(configs, tmp_path, Worker(pack=2, note=notes.append))
    told = [[read_json(f / name).get("engine") for name in (STARTED, SUMMARY)] for f in folders]
    assert told == [["vmap", "vmap"]] * 2
    assert [read_json(f / SUMMARY)["packed"] for f in folders] == [2, 2]
    assert notes == []


def test_runs_that_were_begun_with_several_engines_go_on_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, engines = [TINY.replace(engine="auto", seed=s) for s in (0, 1)], ["serial", "batched"]
    folders = [tmp_path / run_name(c) for c in configs]
    for config, folder, engine in zip(configs, folders, engines, strict=True):
        monkeypatch.setattr(choose, "choose", lambda *given, name=engine: choose.Choice(name, "so"))
        Run.begin(config, folder)
    notes: list[str] = []
    assert work(configs, tmp_path, Worker(pack=2, note=notes.append)).finished == folders
    assert [read_json(f / SUMMARY)["engine"] for f in folders] == engines
    assert [read_json(f / SUMMARY)["packed"] for f in folders] == [1, 1]
    assert notes == []


def test_a_run_that_another_took_over_is_not_begun(tmp_path: Path) -> None:
    held = acquire(tmp_path)
    assert held is not None
    (tmp_path / LEASE).write_text('{"token": "of another process"}')
    execute({tmp_path: TINY}, Worker(watch=lambda c, r: pytest.fail("a round")), {tmp_path: held})
    assert state(tmp_path) == "new"
    held.release()


def test_after_a_stop_no_other_run_is_begun(tmp_path: Path) -> None:
    """The engine cannot do two runs in one batch, so they go one by one; the stop comes at the end of the first."""
    first, second = batch = {tmp_path / str(seed): TINY.replace(engine="serial", seed=seed) for seed in (0, 1)}
    rounds: list[tuple[int, int]] = []
    execute(batch, Worker(watch=lambda c, r: rounds.append((c.seed, r.round)), stop=lambda: len(rounds) == 3))
    assert rounds == [(0, 1), (0, 2), (0, 3)]
    assert state(first) == "finished"
    assert not second.exists()


def test_a_batch_too_large_for_the_memory_goes_on_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, rounds = batched.train, []

    def small(lanes: list, *others: Any) -> list:
        rounds.append(len(lanes))
        if len(lanes) > 1 and len(rounds) > 1:  # the memory is full in the second round
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        return train(lanes, *others)

    monkeypatch.setattr(batched, "train", small)
    notes: list[str] = []
    configs = [TINY, TINY.replace(seed=1)]
    report = work(configs, tmp_path, Worker(pack=2, note=notes.append, save_every=1))
    assert len(report.finished) == 2
    assert rounds == [2, 2, 1, 1, 1, 1]  # each goes on after the round that the batch had saved
    alone = "packed was 2, is 1: what follows may differ in the last bits"
    assert notes == [
        "2 runs cannot go on in one batch, so they go on one by one: CUDA out of memory.",
        *(f"{run_name(config)}: {alone}" for config in configs),
    ]
    assert [read_json(tmp_path / run_name(config) / SUMMARY)["packed"] for config in configs] == [1, 1]


def test_a_run_alone_that_is_too_large_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Run.begin

    def small(config: Config, path: Path, *others: object) -> Run:
        if config.seed == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return begin(config, path)

    monkeypatch.setattr(Run, "begin", small)
    report = work([TINY, TINY.replace(seed=1)], tmp_path, Worker())
    assert len(report.finished) == 1
    assert list(report.failed.values()) == ["the memory ran out: CUDA out of memory"]


def test_a_model_that_does_not_fit_is_one_line_in_a_batch_too(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\ndef net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(63, 10))\n"
    )
    notes: list[str] = []
    configs = [TINY.replace(model=f"{file}:net", engine="vmap", seed=s) for s in (0, 1)]
    report = work(configs, tmp_path / "runs", Worker(pack=2, note=notes.append))
    assert len(report.failed) == 2
    assert all("cannot train this model on these data" in why for why in report.failed.values())
    assert len(notes) == 1
    assert "one by one: the vmap engine cannot train this model on these data. RuntimeError: " in notes[0]


OWN = "from fedsmoo.algorithms import FedAvg\nclass Mine(FedAvg):\n    factor = 1.0\n"


def test_a_file_edited_while_a_sweep_runs_ends_it(tmp_path: Path) -> None:
    """The other runs would be put under the name of what it held before."""
    method = tmp_path / "mine.py"
    method.write_text(OWN)
    configs = [TINY.replace(algorithm=f"{method}:Mine", seed=s) for s in (0, 1)]
    done: list[Path] = []

    def finished(config: Config, folder: Path, summary: dict) -> None:
        done.append(folder)
        method.write_text(OWN + "edited = True\n")

    with pytest.raises(FedsmooError, match=r"mine\.py was edited since this sweep began: choose another folder"):
        work(configs, tmp_path / "runs", Worker(finished=finished))
    assert list((tmp_path / "runs").iterdir()) == done
    method.write_text(OWN)
    assert len(work(configs, tmp_path / "runs", Worker()).finished) == 2


def test_a_run_goes_on_with_the_threads_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, notes, rounds = [1], list[str](), list[int]()
    monkeypatch.setattr(torch, "get_num_threads", lambda: used[-1])
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    watch = lambda config, record: rounds.append(used[-1])  # noqa: E731
    work([TINY], tmp_path, Worker(watch=watch, stop=lambda: len(rounds) == 1))
    used.append(2)
    assert work([TINY], tmp_path, Worker(watch=watch, note=notes.append)).finished
    assert (set(rounds), used[-1], notes) == ({1}, 2, [])


def test_a_watcher_that_answers_does_not_stop_a_run(tmp_path: Path) -> None:
    assert len(work([TINY], tmp_path, Worker(watch=lambda config, record: False)).finished) == 1


def test_checkpoints_are_kept_if_asked_for_even_without_any_on_the_way(tmp_path: Path) -> None:
    folder = work([TINY], tmp_path, Worker(keep=True, save_every=0)).finished[0]
    assert newest(folder / CHECKPOINT)[0] is not None
