"""Files that another process removes between a look and a read: here it does so every time, at the worst moment."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.pages import gather, server
from fedsmoo.pages.server import LiveData
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin import provenance as origin
from fedsmoo.runs.results import finished as saved
from fedsmoo.runs.results.finished import open_finished
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage import checkpoint
from fedsmoo.runs.storage.checkpoint import Checkpoints, Mark, newest
from fedsmoo.runs.storage.files import read_json
from fedsmoo.runs.storage.names import CONFIG, FAILED, METRICS
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.sweeps import index
from fedsmoo.sweeps import queue as work
from fedsmoo.sweeps.results import finished_runs

TINY = Config(model="softmax", rounds=2, local_steps=1, clients=4, cohort=2, engine="serial", device="cpu")
Before = Callable[..., None]


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Before:
    """``before(owner, "name", act)``: call ``act`` with the same arguments just before a function, once."""

    def first(owner: Any, name: str, act: Callable[..., Any]) -> None:
        inner, left = getattr(owner, name), [act]

        def wrapped(*args: Any, **more: Any) -> Any:
            if left:
                left.pop()(*args)
            return inner(*args, **more)

        monkeypatch.setattr(owner, name, wrapped)

    return first


def begun(folder: Path) -> Path:
    """A run that was stopped after a round."""
    Run.begin(TINY, folder).go(stop=lambda: True)
    return folder


def test_a_note_that_is_gone_when_it_is_read_is_no_note(tmp_path: Path, before: Before) -> None:
    (tmp_path / FAILED).write_text("{}")
    before(os, "open", lambda path, *_: os.unlink(path))
    assert read_json(tmp_path / FAILED) == {}


def test_metrics_that_are_gone_when_they_are_read_are_no_rounds(tmp_path: Path, before: Before) -> None:
    folder = begun(tmp_path / "run")
    run = read_run(folder)
    (folder / METRICS).unlink()
    assert run.history == []
    assert index.describe(folder)["done"] == 0


def test_the_index_leaves_out_what_is_gone(tmp_path: Path, before: Before, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        begun(tmp_path / name)
    (tmp_path / "a" / FAILED).write_text(json.dumps({"error": "no"}))
    scandir = os.scandir

    def scan(folder: str) -> list[os.DirEntry[str]]:
        found = list(scandir(folder))
        (tmp_path / "a" / FAILED).unlink(missing_ok=True)  # resumed by another process
        return found

    monkeypatch.setattr(os, "scandir", scan)
    before(index, "describe", lambda folder: (tmp_path / "b" / CONFIG).unlink())
    found = index.query(tmp_path)
    assert [(r["path"], r["state"]) for r in found] == [("a", "unfinished")]


@pytest.mark.parametrize("retry", [False, True])
def test_a_run_that_failed_elsewhere_before_we_had_it_is_not_tried_again(
    retry: bool, tmp_path: Path, before: Before
) -> None:
    before(work, "acquire", lambda path: path.mkdir() or work.record_failure(path, "it failed elsewhere"))
    report = work.work([TINY], tmp_path, work.Worker(retry=retry))
    assert list(report.failed.values()) == ([] if retry else ["it failed elsewhere"])
    assert len(report.finished) == int(retry)


def test_a_file_of_a_checkpoint_that_is_gone_is_a_line_and_the_one_before_is_used(
    tmp_path: Path, before: Before
) -> None:
    store = saved_twice(tmp_path / "checkpoint")
    before(checkpoint, "sha256_of_plain", lambda path: path.unlink())
    found, problems = newest(store.folder)
    assert (found.round if found else None, len(problems)) == (1, 1)
    assert "000002-server.safetensors is missing" in problems[0]


def test_checkpoints_that_give_way_to_newer_ones_while_they_are_read(tmp_path: Path, before: Before) -> None:
    store = saved_twice(tmp_path / "checkpoint")

    def go_on(path: Path) -> None:
        for number in (3, 4):
            store.save(number, Vectors(w=torch.zeros(3)), ClientTable(()), Mark(0, ""))

    before(checkpoint, "read_manifest", go_on)
    found, problems = newest(store.folder)
    assert (found.round if found else None, problems) == (4, [])


def saved_twice(folder: Path) -> Checkpoints:
    store = Checkpoints(folder, {})
    for number in (1, 2):
        store.save(number, Vectors(w=torch.zeros(3)), ClientTable(()), Mark(0, ""))
    return store


def test_a_model_that_is_gone_is_one_line(tmp_path: Path, before: Before) -> None:
    Run.begin(TINY, tmp_path / "run").go()
    before(saved, "load_file", lambda path: path.unlink())
    with pytest.raises(FedsmooError, match="has no model"):
        open_finished(tmp_path / "run")


def test_folders_that_are_gone_are_no_runs(tmp_path: Path, before: Before) -> None:
    (tmp_path / "runs" / "inner").mkdir(parents=True)
    before(os, "scandir", lambda path: shutil.rmtree(path))
    assert finished_runs([tmp_path / "runs"]) == []


def test_the_live_page_outlives_its_folders(tmp_path: Path, before: Before) -> None:
    source = LiveData([begun(tmp_path / "one"), begun(tmp_path / "two"), tmp_path / "later"])
    assert len(json.loads(source.data()[0])["runs"]) == 2
    before(server, "find_runs", lambda paths, **_: shutil.rmtree(tmp_path / "two"))
    assert [r["name"] for r in json.loads(source.data()[0])["runs"]] == ["one"]
    before(gather, "fingerprint", lambda folder: shutil.rmtree(tmp_path / "one"))
    source.data()
    assert json.loads(source.data()[0])["runs"] == []


def test_a_branch_that_git_packs_away_is_still_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git, package = tmp_path / ".git", tmp_path / "src" / "package"
    loose = git / "refs" / "heads" / "main"
    loose.parent.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    loose.write_text("abc\n")
    assert origin.read_head(package) == "abc"
    read = Path.read_text

    def packed(path: Path, *words: Any, **more: Any) -> str:
        if path == loose:
            (git / "packed-refs").write_text("# pack-refs\nabc refs/heads/main\n")
            loose.unlink()
        return read(path, *words, **more)

    monkeypatch.setattr(Path, "read_text", packed)
    assert origin.read_head(package) == "abc"
    assert not loose.exists()
