"""Write a run's folder: the resolved config, metrics round by round, the final model, and what made them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import as_word
from fedsmoo.runs.config import DIVISION, FIELDS, Config
from fedsmoo.runs.origin.provenance import provenance
from fedsmoo.runs.record import Record
from fedsmoo.runs.results.summary import summarise
from fedsmoo.runs.settings.toml import FIRST, LAST, named_tables
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import Mark, write_tensors
from fedsmoo.runs.storage.fence import fence
from fedsmoo.runs.storage.files import DiskError, make_folder, read_json, reason, sync_folder, write_durably
from fedsmoo.runs.storage.names import CONFIG, FAILED, LABEL, METRICS, MODEL, STARTED, SUMMARY
from fedsmoo.runs.storage.toml import to_toml
from fedsmoo.runs.storage.walk import run_folders
from fedsmoo.version import __version__


class RunFolder:
    """Writes one run; ``FedsmooError`` if the folder already holds one."""

    def __init__(self, path: Path, text: str, started: dict[str, Any] | None = None) -> None:
        """Begin a folder with the config as :func:`lossless_text` gives it, and notes of how the run was started."""
        refuse_used(path)
        try:
            make_folder(path)
            write_durably(path / STARTED, json.dumps(started or {}, indent=2) + "\n")
            write_durably(path / CONFIG, text)  # last: where it is, everything else is
            sync_folder(path.parent)  # the folder may have been made by somebody who was then killed
        except OSError as e:
            raise DiskError(f"cannot write the run folder {path}: {reason(e)}") from e
        self._open(path, Mark(0, ""))

    @classmethod
    def reopen(cls, path: Path, mark: Mark) -> RunFolder:
        """Open the folder of a stopped run, its metrics cut back to a checkpoint's."""
        folder = cls.__new__(cls)
        folder._open(path, mark)
        return folder

    def _open(self, path: Path, mark: Mark) -> None:
        self.path = path
        try:
            with fence().held(), (path / METRICS).open("ab") as f:  # not kept open: a failed run has nothing to close
                f.truncate(mark.bytes)
            self.digest = hashlib.sha256((path / METRICS).read_bytes())
        except OSError as e:
            raise DiskError(f"cannot write {path / METRICS}: {reason(e)}") from e
        self.size = mark.bytes

    def record(self, record: Record) -> None:
        """Append a line of metrics, handed to the system before the next round starts; ``DiskError`` if that fails."""
        line = (json.dumps(record.values()) + "\n").encode()
        try:
            with fence().held(), (self.path / METRICS).open("ab") as f:
                f.write(line)
        except OSError as e:
            raise DiskError(f"cannot write {self.path / METRICS}: {reason(e)}; the rounds before are kept") from e
        self.digest.update(line)
        self.size += len(line)

    def mark(self) -> Mark:
        """Flush the metrics to the disk and return how far they go: a checkpoint must never be ahead of them."""
        try:
            with (self.path / METRICS).open("ab") as f:
                os.fsync(f.fileno())
        except OSError as e:
            raise DiskError(f"cannot write {self.path / METRICS}: {reason(e)}; the rounds before are kept") from e
        return Mark(self.size, self.digest.hexdigest())

    def lines(self) -> bytes:
        """Read back the metrics so far; empty if the file is not what was written."""
        try:
            lines = (self.path / METRICS).read_bytes()[: self.size]
        except OSError:
            return b""
        return lines if hashlib.sha256(lines).digest() == self.digest.digest() else b""

    def write_results(self, simulation: Simulation, config: Config, **facts: Any) -> dict[str, Any]:
        """Write the model and the summary, with further facts in it, durably; returns the summary."""
        self.mark()
        summary = {**summarise(simulation.history, config.target), **provenance(simulation), **facts}
        summary |= {"model_sha256": self.keep_model(simulation, config), "metrics_sha256": self.digest.hexdigest()}
        try:
            write_durably(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")
        except OSError as e:
            raise self._full("summary", e) from e
        return summary

    def keep_model(self, simulation: Simulation, config: Config) -> str:
        """Write the global model under its module's own parameter names; returns the file's SHA-256."""
        state = simulation.setup.task.model.state_dict(simulation.refresh())
        note = {"fedsmoo": f"{__version__} {config.model}"}  # one entry: several are written in no fixed order
        try:
            digest = write_tensors(self.path / MODEL, {n: p.contiguous().cpu() for n, p in state.items()}, note)
            sync_folder(self.path)  # a summary must never be there without its model
            return digest
        except (OSError, SafetensorError) as e:
            raise self._full("model", e) from e

    def _full(self, what: str, e: Exception) -> DiskError:
        advice = f"Make room, then go on with: fedsmoo resume {as_word(self.path)}"
        return DiskError(f"cannot write the {what} into {self.path}: {reason(e)}. {advice}")


SESSION = ("command", "commit", "dirty", "engine", "device", "cpu", "threads", "versions", "packed", "pack")


def note_resumed(
    path: Path, simulation: Simulation, facts: dict[str, Any], described: dict[str, Any]
) -> dict[str, Any]:
    """Add to a folder's notes who resumes its run, at which round: it may be other code or another machine.

    What it is (``described``) is added where older versions did not note it. Returns all of the notes.
    """
    started = read_json(path / STARTED)
    begun = {"at": started.get("started"), "round": 0, **{k: started[k] for k in SESSION if k in started}}
    known = {**provenance(simulation), **facts}
    line = {"at": known["finished"], "round": len(simulation.history), **{k: known[k] for k in SESSION if k in known}}
    noted = {**described, **started, "sessions": [*started.get("sessions", [begun]), line]}
    try:
        write_durably(path / STARTED, json.dumps(noted, indent=2) + "\n")
    except OSError as e:
        raise DiskError(f"cannot write {path / STARTED}: {reason(e)}") from e
    return noted


def record_failure(path: Path, why: str) -> None:
    """Write into a run's folder why it cannot go on, even if it could not begin."""
    try:
        write_durably(path / FAILED, json.dumps({"error": why}) + "\n")
    except OSError as e:
        raise DiskError(f"{why}; nor can a note of it be written into {path}: {e.strerror}") from e


def forget_failure(path: Path) -> None:
    """Remove the note of why a run could not go on: it is tried again."""
    remove_files(path, FAILED)


def remove_files(path: Path, *names: str) -> None:
    """Remove files of a run, if they are there, as its owner; ``DiskError`` if that fails."""
    try:
        with fence().held():
            for name in names:
                (path / name).unlink(missing_ok=True)
    except OSError as e:
        raise DiskError(f"cannot remove a file from {path}: {reason(e)}") from e


def config_text(config: Config) -> str:
    """Return a config as TOML; a none that differs from the default is written as a word, for TOML has none."""
    unused = unused_settings(config)
    values = {k: v for k, v in config.to_dict().items() if k not in unused}
    text = to_toml({k: "none" if v is None and FIELDS[k].default is not None else v for k, v in values.items()})
    return f"{FIRST}\n{text}{LAST}\n"


def unused_settings(config: Config) -> set[str]:
    """Return the settings that a run does not use: beside a split file there is no partition rule."""
    return set(DIVISION) - {"clients"} if config.split is not None else set()


def refuse_used(path: Path) -> None:
    """Raise ``FedsmooError`` if a folder is a run or holds some, which would not be found any more; a lease is none."""
    if (path / CONFIG).exists() or (path / METRICS).exists():
        raise FedsmooError(
            f"the folder {path} already holds a run: choose another folder, or go on with "
            f"'fedsmoo resume {as_word(path)}'; nothing was overwritten"
        )
    if inner := next(run_folders([path]), None):
        raise FedsmooError(
            f"the folder {path} holds runs, such as {inner}: a run needs a folder of its own, such as {path / 'new'}"
        )


def refuse_run_folder(path: Path) -> None:
    """Raise ``FedsmooError`` if a folder that runs shall lie in is a run itself: below one, none would be found."""
    if (path / CONFIG).exists() and (path / METRICS).exists():
        raise FedsmooError(f"the folder {path} is a run, and runs do not lie in a run: choose another folder")


def new_folder(config: Config) -> Path:
    """Make ``runs/fedsmoo-digits-seed0``, numbered if that exists; at once, so that nobody else chooses it.

    Raises:
        DiskError: if it cannot be made.
    """
    name = Path(config.algorithm.rpartition(":")[2] or config.algorithm).name
    stem = f"{name}-{config.dataset.partition(':')[0]}-seed{config.seed}".lower()
    stem = "".join(ch if ch.isalnum() or ch in "-_." else "-" for ch in stem)
    for i in itertools.count(1):
        folder = Path("runs") / (stem if i == 1 else f"{stem}-{i}")
        try:
            make_folder(folder.parent)
            folder.mkdir()
            sync_folder(folder.parent)
            return folder
        except FileExistsError:
            continue
        except OSError as e:
            raise DiskError(f"cannot write the run folder {folder}: {reason(e)}") from e
    raise AssertionError


def lossless_text(config: Config) -> str:
    """Return a config as TOML that gives it back: else it could neither be resumed nor told apart from others.

    Raises:
        FedsmooError: if a setting would be read back otherwise, or cannot be written at all.
    """
    text = config_text(config)
    try:
        back = Config(**named_tables(tomllib.loads(text), CONFIG))
    except tomllib.TOMLDecodeError as e:
        raise FedsmooError(f"the settings cannot be kept in {CONFIG}: {e}") from e
    unused = unused_settings(config)
    lost = [n for n, v in config.to_dict().items() if n not in unused and repr(getattr(back, n)) != repr(as_toml(v))]
    if lost:
        raise FedsmooError(f"the settings cannot be kept in {CONFIG}: {', '.join(lost)} would be read back otherwise")
    return text


def as_toml(value: Any) -> Any:
    """Return a value as TOML gives it back: NumPy's numbers and subclasses as plain ones, tuples as lists."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(k): as_toml(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_toml(v) for v in value]
    kinds = (bool, int, float, str)  # in this order: true and false are numbers, too
    return next((kind(value) for kind in kinds if isinstance(value, kind)), value)


def write_label(folder: Path, label: str | None) -> None:
    """Write what the method of a run is called, by a sweep that owns the folder; none if that is its own name."""
    try:
        write_durably(folder / LABEL, f"{label or ''}\n")
    except OSError as e:
        raise DiskError(f"cannot write into {folder}: {reason(e)}") from e
