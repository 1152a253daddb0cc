"""An index of run folders that can be queried, in SQLite. It holds nothing that the folders do not: lose it, and it is
made again."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import FIELDS, Config, kind_of
from fedsmoo.runs.origin.contents import data_label, held_in, refuse_damaged
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.storage.folder import (
    CONFIG,
    FAILED,
    METRICS,
    STARTED,
    SUMMARY,
    bytes_of,
    read_config,
    read_json,
    unused_settings,
)
from fedsmoo.runs.storage.label import LABEL, read_label

INDEX = ".index.sqlite"
STAMPED = (CONFIG, METRICS, SUMMARY, FAILED, LABEL)  # the files that a row is made from
PLAIN = [n for n in FIELDS if not n.endswith("_options")]
NUMBERS = ("test_accuracy", "test_accuracy_last10", "best_accuracy", "validated_accuracy", "test_loss",
           "bytes_up", "bytes_down", "seconds_train", "seconds_eval", "parameters")  # fmt: skip
TYPES = {int: "INTEGER", bool: "INTEGER", float: "REAL", str: "TEXT"}


def columns() -> dict[str, str]:
    """Names and types of the index's columns."""
    settings = {n: TYPES[kind_of(Config, n)[0]] for n in PLAIN}
    own = {"path": "TEXT PRIMARY KEY", "label": "TEXT"}
    own |= {"stamp": "TEXT", "identity": "TEXT", "state": "TEXT", "done": "INTEGER"}
    more = {"options": "TEXT", "error": "TEXT", "finished": "TEXT", "device_name": "TEXT", "engine_used": "TEXT"}
    more["data_used"] = "TEXT"  # the data set, named by its content where that is not what the name says
    return {**own, **settings, **dict.fromkeys(NUMBERS, "REAL"), **more}


def version() -> int:
    """A number for these columns: an index with others, of another version of fedsmoo, is made again."""
    digest = hashlib.sha256(json.dumps(columns()).encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31 - 1) + 1  # SQLite keeps 31 bits; 0 is a new file's


def run_folders(root: Path, depth: int = 4) -> Iterator[tuple[str, str]]:
    """Run folders below ``root`` with a stamp that changes when they do."""
    stack = [(str(root), depth)]
    while stack:
        folder, left = stack.pop()
        try:
            entries = {e.name: e for e in os.scandir(folder)}
        except OSError:
            continue
        if CONFIG in entries:
            yield folder, ",".join(changed(entries[n]) for n in STAMPED if n in entries)
        elif left:
            stack += [(e.path, left - 1) for n, e in entries.items() if not n.startswith(".") and e.is_dir()]


def changed(entry: os.DirEntry[str]) -> str:
    """When a file changed and its size; nothing if it is gone by now."""
    try:
        state = entry.stat()
    except OSError:
        return "gone"
    return f"{state.st_mtime_ns}:{state.st_size}"


def describe(folder: Path) -> dict[str, Any]:
    """A run folder as a row."""
    config, summary, failure = read_config(folder), read_json(folder / SUMMARY), read_json(folder / FAILED)
    started = read_json(folder / STARTED)
    refuse_damaged(config, started, str(folder / STARTED))
    unused = unused_settings(config)
    options = {**config.algorithm_options, **{f"model.{k}": v for k, v in config.model_options.items()}}
    return {
        "label": read_label(folder),
        "identity": identity(config, held_in(started)),
        "state": "finished" if summary else "failed" if failure else "unfinished",
        "done": summary.get("rounds") or bytes_of(folder / METRICS).count(b"\n"),
        **{n: None if n in unused else getattr(config, n) for n in PLAIN},
        **{n: summary.get(n) for n in NUMBERS},
        "options": json.dumps(options, sort_keys=True),
        "error": failure.get("error"),
        "finished": summary.get("finished"),
        "device_name": summary.get("device"),
        "engine_used": summary.get("engine"),
        "data_used": data_label(config.dataset, started),
    }


def storable(row: dict[str, Any]) -> dict[str, Any]:
    """A row that SQLite takes: whole numbers beyond its 64 bits as text."""
    return {n: str(v) if isinstance(v, int) and not -(2**63) <= v < 2**63 else v for n, v in row.items()}


def version_of(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def connect(root: Path) -> sqlite3.Connection:
    """The index of a folder, made anew if it is missing, damaged or of another version."""
    path = root / INDEX
    for attempt in (1, 2):
        db = sqlite3.connect(path, timeout=30, isolation_level=None)
        try:
            if version_of(db) != version():
                db.execute("BEGIN IMMEDIATE")
                if version_of(db) != version():  # nobody else made it meanwhile
                    db.execute("DROP TABLE IF EXISTS runs")
                    described = ", ".join(f'"{n}" {t}' for n, t in columns().items())
                    db.execute(f"CREATE TABLE runs ({described})")
                    db.execute(f"PRAGMA user_version = {version()}")
                db.execute("COMMIT")
            db.execute("SELECT path FROM runs LIMIT 1")
            return db
        except sqlite3.DatabaseError as e:
            db.close()
            if attempt == 2 or "locked" in str(e):
                raise FedsmooError(f"cannot use the index {path}: {e}; delete it, it is made again") from e
            path.unlink(missing_ok=True)
    raise AssertionError


def refresh(root: Path) -> int:
    """Bring the index up to date with the folders; returns how many were read."""
    root = root.resolve()
    if not root.is_dir():
        raise FedsmooError(f"{root} is not a folder: give one that holds runs")
    db = connect(root)
    try:
        known = dict(db.execute("SELECT path, stamp FROM runs"))
        there = {os.path.relpath(p, root): s for p, s in run_folders(root)}
        rows = []
        for path, stamp in there.items():
            if known.get(path) == stamp:
                continue
            try:
                rows.append({"path": path, "stamp": stamp, **describe(root / path)})
            except FedsmooError as e:  # a folder that cannot be read is listed with the reason, if it is still there
                if not (root / path / CONFIG).exists():
                    continue
                rows.append({"path": path, "stamp": stamp, "state": "unreadable", "error": str(e)})
        db.execute("BEGIN IMMEDIATE")
        for row in rows:
            names, marks = ", ".join(f'"{n}"' for n in row), ", ".join(f":{n}" for n in row)
            db.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", storable(row))
        db.executemany("DELETE FROM runs WHERE path = ?", [(p,) for p in known if p not in there])
        db.execute("COMMIT")
        return len(rows)
    except sqlite3.OperationalError as e:
        raise FedsmooError(f"cannot write the index of {root}: {e}") from e
    finally:
        db.close()


def query(
    root: Path, where: str | None = None, order: str | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """Runs that satisfy an SQL condition on the index's columns, such as ``algorithm = 'fedsmoo' AND lr < 0.1``."""
    refresh(root)
    db = sqlite3.connect(f"file:{(root / INDEX).resolve()}?mode=ro", uri=True)  # a condition can only read
    db.row_factory = sqlite3.Row
    text = "SELECT * FROM runs" + (f" WHERE {where}" if where else "")
    text += f" ORDER BY {order or 'path'}" + (f" LIMIT {int(limit)}" if limit is not None else "")
    try:
        return [dict(row) for row in db.execute(text)]
    except (sqlite3.OperationalError, sqlite3.Warning, sqlite3.ProgrammingError) as e:
        names = ", ".join(n for n in columns() if n != "stamp")
        given = [f"{n} {v!r}" for n, v in (("--where", where), ("--order", order)) if v is not None]
        raise FedsmooError(f"{' or '.join(given)} is not SQL for these columns: {e}. Columns: {names}") from e
    finally:
        db.close()
