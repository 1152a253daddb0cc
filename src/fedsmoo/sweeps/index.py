"""An index of run folders that can be queried, in SQLite. It holds nothing that the folders do not: lose it, and it is
made again."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.untrusted import text
from fedsmoo.runs.config import FIELDS, Config, free_within
from fedsmoo.runs.origin.samples import data_label
from fedsmoo.runs.record import GLOBAL, PERSONAL
from fedsmoo.runs.results.summary import read_ending
from fedsmoo.runs.settings.fields import kind_of
from fedsmoo.runs.storage.folder import unused_settings
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.storage.walk import stamped_folders

INDEX = ".index.sqlite"
LARGEST = 2**28  # bytes of an index: there are not so many runs
PLAIN = [n for n in FIELDS if not n.endswith("_options")]
NUMBERS = ("test_accuracy", "test_accuracy_last10", "best_accuracy", "validated_accuracy", "test_loss",
           "bytes_up", "bytes_down", "seconds_train", "seconds_eval", "parameters", *PERSONAL, *GLOBAL,
           "score", "score_last10", "best_score", "validated_score", "personal_score", "global_score")  # fmt: skip
TYPES = {int: "INTEGER", bool: "INTEGER", float: "REAL", str: "TEXT"}


def columns() -> dict[str, str]:
    """Return the names and types of the index's columns."""
    settings = {n: TYPES[kind_of(Config, n)[0]] for n in PLAIN}
    own = {"path": "TEXT PRIMARY KEY", "label": "TEXT"}
    own |= {"stamp": "TEXT", "identity": "TEXT", "state": "TEXT", "done": "INTEGER"}
    more = {"options": "TEXT", "error": "TEXT", "finished": "TEXT", "device_name": "TEXT", "engine_used": "TEXT"}
    more["data_used"] = "TEXT"  # the data set, named by its content where that is not what the name says
    more["changes"] = "TEXT"  # what callbacks changed on the way, as JSON
    more["metric"] = "TEXT"  # what leads: the score is one of it
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
        "identity": run.identity,
        "state": run.state,
        "done": run.done,
        **{n: None if n in unused else getattr(config, n) for n in PLAIN},
        **{n: summary.get(n) for n in NUMBERS},
        **score_columns(summary),
        "options": json.dumps(config.options(), sort_keys=True, default=str),
        "error": run.failure.get("error"),
        "finished": summary.get("finished"),
        "device_name": summary.get("device"),
        "engine_used": summary.get("engine"),
        "data_used": data_label(config.dataset, run.started),
        "changes": json.dumps(made) if (made := run.facts.get("changes")) else None,
    }


def score_columns(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what leads in a run, and how well it ended by that: of most runs its accuracies."""
    end = read_ending(summary)
    mean = {f"{who}_score": end.personal.get(who, (None,))[0] for who in ("personal", "global")}
    values = {"score": end.last, "score_last10": end.last_ten, "best_score": end.best, "validated_score": end.validated}
    return {"metric": end.lead.name if end.last is not None or end.lacking else None, **values, **mean}


def storable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that SQLite takes: whole numbers beyond its 64 bits as text, and text that is UTF-8."""
    fits = {n: str(v) if isinstance(v, int) and not -(2**63) <= v < 2**63 else v for n, v in row.items()}
    return {n: as_utf8(v) if isinstance(v, str) else v for n, v in fits.items()}


def as_utf8(name: str) -> str:
    """Return text that may hold bytes of a file's name which are no UTF-8, with these written out."""
    return name.encode("utf-8", "backslashreplace").decode()


def version_of(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def table_sql() -> str:
    """Return the SQL that makes the index's only table."""
    described = ", ".join(f'"{n}" {t}' for n, t in columns().items())
    return f"CREATE TABLE runs ({described})"


def is_as_made(db: sqlite3.Connection) -> bool:
    """Return whether an index is as this version makes it: no views, no triggers, nothing that a stranger put there."""
    return db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall() == [("runs", table_sql())]


def is_plain(path: Path) -> bool:
    """Return whether SQLite may open a file here: it and its journals are plain files of one name, or not there."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        try:
            found = path.with_name(path.name + suffix).lstat()
        except FileNotFoundError:
            continue
        except OSError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_size > LARGEST:
            return False
    return True


def make(db: sqlite3.Connection) -> None:
    """Make an index that is missing or of another version, unless another process just did."""
    db.execute("BEGIN IMMEDIATE")
    if version_of(db) != version() or not is_as_made(db):
        if db.execute("SELECT count(*) FROM sqlite_master WHERE type != 'table' AND sql IS NOT NULL").fetchone()[0]:
            raise sqlite3.DatabaseError("it holds more than a table")
        db.execute("DROP TABLE IF EXISTS runs")
        db.execute(table_sql())
        db.execute(f"PRAGMA user_version = {version()}")
        if not is_as_made(db):
            raise sqlite3.DatabaseError("it holds other tables")
    db.execute("COMMIT")


def connect(root: Path) -> sqlite3.Connection:
    """Open the index of a folder, made anew if it is missing, damaged or not as this version makes it.

    Where a file that SQLite may not open is in its place, or the folder cannot be written, it is made in memory.
    """
    path = root / INDEX
    for attempt in (1, 2):
        if not is_plain(path) or not all(os.access(p, os.W_OK) for p in (root, path) if p.exists()):
            break
        db = None
        try:
            db = sqlite3.connect(path, timeout=30, isolation_level=None)
            db.execute("PRAGMA trusted_schema = 0")
            if version_of(db) != version() or not is_as_made(db):
                make(db)
            db.execute("SELECT path FROM runs LIMIT 1")
            return db
        except sqlite3.DatabaseError as e:  # also of a disk that is full, or does not answer
            if db is not None:
                db.close()
            if "readonly" in str(e) or "unable to open" in str(e):
                break
            if attempt == 2 or "locked" in str(e):
                raise FedsmooError(f"cannot use the index {path}: {e}; delete it, it is made again") from e
            path.unlink(missing_ok=True)
    db = sqlite3.connect(":memory:", isolation_level=None)
    make(db)
    return db


def refresh(root: Path) -> int:
    """Bring the index up to date with the folders; returns how many were read."""
    db, read = open_index(root)
    db.close()
    return read


def open_index(root: Path) -> tuple[sqlite3.Connection, int]:
    """Open the index of a folder, up to date; returns how many folders were read for that, too."""
    root = root.resolve()
    if not root.is_dir():
        raise FedsmooError(f"{root} is not a folder: give one that holds runs")
    db = connect(root)
    try:
        known = dict(db.execute("SELECT path, stamp FROM runs"))
        there = set[str]()
        rows = []
        for path, now in stamped_folders(root):
            there.add(as_utf8(path))
            if known.get(as_utf8(path)) == now:
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
        return db, len(rows)
    except sqlite3.Error as e:
        db.close()
        raise FedsmooError(f"cannot write the index of {root}: {e}; delete {root / INDEX}, it is made again") from e
    except BaseException:
        db.close()
        raise


def only_reading(action: int, *_: str | None) -> int:
    """Allow a condition to read, and nothing else: no ``ATTACH``, no ``PRAGMA``."""
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


def query(
    root: Path, where: str | None = None, order: str | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the runs that satisfy an SQL condition on the index's columns: ``algorithm = 'fedsmoo' AND lr < 0.1``."""
    db, _ = open_index(root)
    db.execute("PRAGMA query_only = 1")
    db.set_authorizer(only_reading)
    db.row_factory = sqlite3.Row
    db.text_factory = lambda content: content.decode("utf-8", "replace")
    text = "SELECT * FROM runs" + (f" WHERE {where}" if where else "")
    text += f" ORDER BY {order or 'path'}" + (f" LIMIT {int(limit)}" if limit is not None else "")
    try:
        return [dict(row) for row in db.execute(text)]
    except (sqlite3.DatabaseError, sqlite3.Warning) as e:
        names = ", ".join(n for n in columns() if n != "stamp")
        given = [f"{n} {v!r}" for n, v in (("--where", where), ("--order", order)) if v is not None]
        raise FedsmooError(f"{' or '.join(given)} is not SQL for these columns: {e}. Columns: {names}") from e
    finally:
        db.close()


def settings_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a run of the index what it is, by name: settings, seed, and options under their own names.

    What may differ between runs of one line of a table, such as the engine, is left out.
    """
    incidental = {*free_within("line"), "dataset"} - {"seed"}  # the column data_used says more than dataset
    plain = {n: row[n] for n in ("algorithm", "data_used", *PLAIN, "changes") if n not in incidental}
    try:
        options = json.loads(row["options"] or "{}")
    except (TypeError, ValueError):  # anybody may have made the index
        options = {}
    return plain | ({text(n, 80): v for n, v in list(options.items())[:50]} if isinstance(options, dict) else {})


def differing_settings(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, each with a value for every run; ``None`` where a run has none."""
    each = [settings_of_row(row) for row in rows]
    read = [mine for mine, row in zip(each, rows, strict=True) if row["state"] != "unreadable"]
    names = dict.fromkeys(name for mine in read for name in mine)
    told = [n for n in names if len({repr(mine.get(n)) for mine in read}) > 1]
    return {n: [mine.get(n) for mine in each] for n in told}
