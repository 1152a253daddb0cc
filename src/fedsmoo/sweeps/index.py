"""An index of run folders that can be queried, in SQLite. It holds nothing that the folders do not: lose it, and it is
made again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import FIELDS, Config, kind_of
from fedsmoo.runs.origin.contents import data_label
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.record import GLOBAL, PERSONAL
from fedsmoo.runs.storage.folder import unused_settings
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.storage.walk import stamped_folders

INDEX = ".index.sqlite"
PLAIN = [n for n in FIELDS if not n.endswith("_options")]
NUMBERS = ("test_accuracy", "test_accuracy_last10", "best_accuracy", "validated_accuracy", "test_loss",
           "bytes_up", "bytes_down", "seconds_train", "seconds_eval", "parameters", *PERSONAL, *GLOBAL)  # fmt: skip
TYPES = {int: "INTEGER", bool: "INTEGER", float: "REAL", str: "TEXT"}


def columns() -> dict[str, str]:
    """Return the names and types of the index's columns."""
    settings = {n: TYPES[kind_of(Config, n)[0]] for n in PLAIN}
    own = {"path": "TEXT PRIMARY KEY", "label": "TEXT"}
    own |= {"stamp": "TEXT", "identity": "TEXT", "state": "TEXT", "done": "INTEGER"}
    more = {"options": "TEXT", "error": "TEXT", "finished": "TEXT", "device_name": "TEXT", "engine_used": "TEXT"}
    more["data_used"] = "TEXT"  # the data set, named by its content where that is not what the name says
    return {**own, **settings, **dict.fromkeys(NUMBERS, "REAL"), **more}


def version() -> int:
    """Return a number for these columns: an index with others, of another version of fedsmoo, is made again."""
    digest = hashlib.sha256(json.dumps(columns()).encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31 - 1) + 1  # SQLite keeps 31 bits; 0 is a new file's


def describe(folder: Path) -> dict[str, Any]:
    """Return a run folder as a row; ``FedsmooError`` if it cannot be read."""
    run = read_run(folder)
    config, summary = run.config, run.summary
    run.refuse_damaged()
    unused = unused_settings(config)
    return {
        "label": run.label,
        "identity": identity(config, run.held),
        "state": run.state,
        "done": run.done,
        **{n: None if n in unused else getattr(config, n) for n in PLAIN},
        **{n: summary.get(n) for n in NUMBERS},
        "options": json.dumps(config.options(), sort_keys=True, default=str),
        "error": run.failure.get("error"),
        "finished": summary.get("finished"),
        "device_name": summary.get("device"),
        "engine_used": summary.get("engine"),
        "data_used": data_label(config.dataset, run.started),
    }


def storable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that SQLite takes: whole numbers beyond its 64 bits as text."""
    return {n: str(v) if isinstance(v, int) and not -(2**63) <= v < 2**63 else v for n, v in row.items()}


def version_of(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def connect(root: Path) -> sqlite3.Connection:
    """Open the index of a folder, made anew if it is missing, damaged or of another version."""
    path = root / INDEX
    for attempt in (1, 2):
        db: sqlite3.Connection | None = None
        try:
            db = sqlite3.connect(path, timeout=30, isolation_level=None)
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
            if db is not None:
                db.close()
            if attempt == 2 or "locked" in str(e):
                raise FedsmooError(f"cannot use the index {path}: {e}; delete it, it is made again") from e
            with suppress(OSError):  # then the second attempt says what is wrong
                path.unlink()
    raise AssertionError


def refresh(root: Path) -> int:
    """Bring the index up to date with the folders; returns how many were read."""
    root = root.resolve()
    if not root.is_dir():
        raise FedsmooError(f"{root} is not a folder: give one that holds runs")
    db = connect(root)
    try:
        known = dict(db.execute("SELECT path, stamp FROM runs"))
        there = dict(stamped_folders(root))
        rows = []
        for path, now in there.items():
            if known.get(path) == now:
                continue
            try:
                rows.append({"path": path, "stamp": now, **describe(root / path)})
            except FedsmooError as e:  # a folder that cannot be read is listed with the reason, if it is still there
                if not (root / path / CONFIG).exists():
                    continue
                rows.append({"path": path, "stamp": now, "state": "unreadable", "error": str(e)})
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
    """Return the runs that satisfy an SQL condition on the index's columns: ``algorithm = 'fedsmoo' AND lr < 0.1``."""
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
