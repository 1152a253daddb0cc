"""The index of runs: made from folders, made again when lost, quick with many."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.folder import config_text
from fedsmoo.runs.storage.names import CONFIG, FAILED, METRICS, SUMMARY
from fedsmoo.runs.storage.walk import stamped_folders
from fedsmoo.sweeps import index
from fedsmoo.sweeps.index import INDEX, connect, query, refresh


def fake(folder: Path, config: Config, **summary: float) -> Path:
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(config_text(config))
    (folder / METRICS).touch()
    if summary:
        (folder / SUMMARY).write_text(json.dumps({"rounds": config.rounds, **summary}))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    fake(tmp_path / "a", Config(algorithm="fedavg", lr=0.1, clip=None), test_accuracy=0.5)
    fake(tmp_path / "deep" / "b", Config(algorithm="fedsmoo", lr=0.01, algorithm_options={"r": 0.2}), test_accuracy=0.7)
    fake(tmp_path / "c", Config(algorithm="fedsmoo", lr=0.1))
    (tmp_path / "c" / FAILED).write_text('{"error": "no longer finite"}')
    return tmp_path


def test_a_condition_selects_runs(runs: Path) -> None:
    assert [r["path"] for r in query(runs)] == ["a", "c", "deep/b"]
    assert [r["path"] for r in query(runs, "algorithm = 'fedsmoo' AND lr < 0.05")] == ["deep/b"]
    assert [r["path"] for r in query(runs, "clip IS NULL")] == ["a"]
    assert [r["path"] for r in query(runs, "state = 'finished'", order="test_accuracy DESC")] == ["deep/b", "a"]
    assert [r["path"] for r in query(runs, "json_extract(options, '$.r') = 0.2")] == ["deep/b"]
    assert query(runs, "state = 'failed'")[0]["error"] == "no longer finite"


def test_it_follows_the_folders_and_survives_its_deletion(runs: Path) -> None:
    before = query(runs)
    assert refresh(runs) == 0  # nothing has changed: nothing is read
    (runs / INDEX).unlink()
    assert query(runs) == before
    (runs / INDEX).write_bytes(b"this is not a database, and longer than a header" * 50)
    assert query(runs) == before
    shutil.rmtree(runs / "a")
    (runs / "c" / FAILED).unlink()
    assert [(r["path"], r["state"]) for r in query(runs)] == [("c", "unfinished"), ("deep/b", "finished")]


@pytest.mark.parametrize("change", ["added", "removed"])
def test_an_index_with_other_columns_is_made_again(runs: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Another version of fedsmoo has other settings."""
    now = index.columns()
    other = {"added": {n: t for n, t in now.items() if n != "lr"}, "removed": {**now, "momentum": "REAL"}}
    with monkeypatch.context() as older:
        older.setattr(index, "columns", lambda: other[change])
        index.connect(runs).close()
    assert [r["path"] for r in query(runs, "lr < 0.05")] == ["deep/b"]
    assert list(query(runs)[0]) == list(now)


def test_an_index_of_before_versions_were_derived_is_made_again(runs: Path) -> None:
    db = sqlite3.connect(runs / INDEX)
    db.execute("CREATE TABLE runs (path TEXT PRIMARY KEY, stamp TEXT)")
    db.execute("PRAGMA user_version = 1")
    db.close()
    assert len(query(runs)) == 3


def test_a_condition_can_only_read(runs: Path) -> None:
    for bad in ("1; DROP TABLE runs", "nonsense ==", "learning_rate > 1"):
        with pytest.raises(FedsmooError, match="is not SQL for these columns"):
            query(runs, bad)
    assert len(query(runs)) == 3


def test_a_broken_folder_is_listed_with_its_reason(runs: Path) -> None:
    (runs / "d").mkdir()
    (runs / "d" / CONFIG).write_text("rounds = [")
    (runs / "d" / METRICS).touch()
    row = query(runs, "state = 'unreadable'")[0]
    assert row["path"] == "d"
    assert "not valid TOML" in row["error"]


def test_a_summary_without_a_number_that_comes_with_others_does_not_block_the_index(runs: Path) -> None:
    fake(runs / "d", Config(), test_accuracy=0.6, personal_accuracy=0.7)
    assert [r["personal_accuracy"] for r in query(runs, "path = 'd'")] == [0.7]


def test_a_number_beyond_64_bits_does_not_block_the_index(runs: Path) -> None:
    fake(runs / "d", Config(seed=2**64, algorithm_options={"r": 0.3}), test_accuracy=0.6)
    assert [r["path"] for r in query(runs, "seed > 9e18")] == ["d"]
    assert len(query(runs)) == 4


def test_ten_thousand_runs_would_answer_within_a_second(tmp_path: Path) -> None:
    """A fifth of them in a fifth of it, of the process's own time: whoever else is at work does not count."""
    text, count = config_text(Config()), 2000
    for k in range(count):
        folder = tmp_path / f"{k:05d}"
        folder.mkdir()
        (folder / CONFIG).write_text(text)
        (folder / METRICS).touch()
    # Reading so many folders takes a while, once; here every row is the first one's, under its own path.
    row = index.describe(tmp_path / "00000")
    db = connect(tmp_path)
    rows = [{"path": p, "stamp": s, **row, "lr": k / count} for k, (p, s) in enumerate(stamped_folders(tmp_path))]
    names = ", ".join(f'"{n}"' for n in rows[0])
    db.execute("BEGIN")
    db.executemany(f"INSERT INTO runs ({names}) VALUES ({', '.join(':' + n for n in rows[0])})", rows)
    db.execute("COMMIT")
    db.close()
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        found = query(tmp_path, "lr < 0.01 AND algorithm = 'fedsmoo'")
        best = min(best, time.process_time() - began)
    assert len(found) == count / 100
    assert best < count / 10_000


def test_an_index_that_is_up_to_date_is_opened_while_somebody_writes(runs: Path) -> None:
    index.refresh(runs)
    writing = sqlite3.connect(runs / index.INDEX, isolation_level=None)
    writing.execute("BEGIN IMMEDIATE")
    try:
        index.connect(runs).close()  # would wait for half a minute, and then fail
    finally:
        writing.execute("ROLLBACK")
        writing.close()


def listed(root: Path) -> list[str]:
    return [r["path"] for r in query(root)]


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "hard link"])
def test_an_index_is_never_opened_through_a_link_or_a_pipe(runs: Path, kind: str, suffix: str) -> None:
    """Nor are its journals, which SQLite would roll back into it, and truncate."""
    mine, place = runs.parent / "mine", runs / f"{INDEX}{suffix}"
    mine.write_bytes(b"precious" * 1000)
    if kind == "link":
        place.symlink_to(mine)
    elif kind == "dangling":
        place.symlink_to(runs.parent / "made")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "hard link":
        place.hardlink_to(mine)
    else:
        place.mkdir()
    assert listed(runs) == ["a", "c", "deep/b"]
    assert refresh(runs) == 3  # in memory: nothing is kept
    assert mine.read_bytes() == b"precious" * 1000
    assert not (runs.parent / "made").exists()
    assert place.is_symlink() or place.exists()


def test_a_folder_that_cannot_be_written_is_indexed_in_memory(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.os, "access", lambda path, mode: False)  # as on a disk that is mounted to be read
    assert listed(runs) == ["a", "c", "deep/b"]
    assert not (runs / INDEX).exists()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW more AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
        "CREATE TABLE other (x)",
        "CREATE INDEX i ON runs (path)",
        "DROP TABLE runs",
        "ALTER TABLE runs ADD COLUMN more",
    ],
)
def test_an_index_that_a_stranger_changed_is_made_again(runs: Path, sql: str) -> None:
    refresh(runs)
    db = sqlite3.connect(runs / INDEX)
    db.execute(sql)
    db.commit()
    db.close()
    assert listed(runs) == ["a", "c", "deep/b"]
    assert refresh(runs) == 0
    db = connect(runs)
    assert [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")] == ["runs"]
    db.close()


def test_a_condition_attaches_and_sets_nothing(runs: Path, tmp_path: Path) -> None:
    for where in (f"1; ATTACH '{tmp_path}/new' AS x", "path IN (SELECT name FROM pragma_database_list)"):
        with pytest.raises(FedsmooError, match="is not SQL for these columns"):
            query(runs, where)
    assert not (tmp_path / "new").exists()
