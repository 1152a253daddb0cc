"""A run carried out in its folder: recorded round by round, saved now and then, stopped and resumed at will."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core import FedsmooError
from fedsmoo.engines.choose import ENGINES
from fedsmoo.engines.task import IDLE, idle_precision
from fedsmoo.engines.threads import fix_threads
from fedsmoo.runs.build import assemble, make_device
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import edited, files_held, held_in, refuse_other_data, same_data
from fedsmoo.runs.origin.identity import config_of, differences, identity
from fedsmoo.runs.origin.provenance import again, provenance
from fedsmoo.runs.record import Record, Result
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import Checkpoints, DiskError, Mark, Saved, newest, reason, write_durably
from fedsmoo.runs.storage.folder import (
    CHECKPOINT,
    CONFIG,
    FAILED,
    METRICS,
    STARTED,
    SUMMARY,
    RunFolder,
    bytes_of,
    note_resumed,
    parse_records,
    read_config,
    read_json,
    write_atomically,
)
from fedsmoo.runs.storage.lease import Lease

SHOWN = 1000  # clients that a picture of who holds what has room for
Watch = Callable[[Record], Any]
Stop = Callable[[], bool]


def quiet(record: Record) -> None:
    """Watch nothing."""


def never() -> bool:
    """Do not stop."""
    return False


SHARE = 0.04  # of the time may go into saving
DIFFER = "what follows may differ in the last bits"
TAKEN = "another process took this run over while this one was silent; it ends here"


@dataclass
class Pace:
    """When to save: so seldom that saving takes less than ``share`` of the time, or every so many rounds."""

    every: int | None = None  # rounds; 0: never
    share: float = SHARE
    cost: float = 0.05  # seconds of a save, before one was timed
    rate: float = 5e-9  # seconds a byte
    since: float = field(default_factory=time.perf_counter)

    def due(self, number: int, size: int) -> bool:
        """Whether to save ``size`` bytes after round ``number``."""
        if self.every is not None:
            return self.every > 0 and number % self.every == 0
        return (time.perf_counter() - self.since) * self.share > max(self.cost, self.rate * size)

    def saved(self, began: float, size: int) -> None:
        """Learn from a save that began at a time."""
        self.since = time.perf_counter()
        self.cost = self.since - began
        self.rate = self.cost / max(size, 1)


@dataclass
class Run:
    """A simulation with its folder and checkpoints."""

    config: Config
    simulation: Simulation
    folder: RunFolder
    checkpoints: Checkpoints
    notes: list[str] = field(default_factory=list)  # what a person should know about how it was reopened
    lease: Lease | None = None  # none: the caller sees to it that nobody else is at work

    @classmethod
    def begin(cls, config: Config, path: Path, simulation: Simulation | None = None, **facts: Any) -> Run:
        """A new run in a new folder, which notes further facts; how many natural clients there are is known now."""
        simulation = simulation or assemble(config)
        if config.split is None and config.partition == "natural":
            config = config.replace(clients=len(simulation.indices))
        started = provenance(simulation)
        started["started"] = started.pop("finished")
        started |= {"again": again(config), **facts, **files_held(config, simulation.setup.task.data)}
        folder = RunFolder(path, config, started)
        keep_division(simulation, path)
        return cls(config, simulation, folder, Checkpoints(path / CHECKPOINT, about(config, simulation)))

    @classmethod
    def reopen(cls, path: Path, device: str | None = None, simulation: Simulation | None = None, **facts: Any) -> Run:
        """A run that was stopped, at its newest sound checkpoint, or at its start if it has none.

        ``simulation`` is one made from the same config, at its start, that takes the place of a new one. Who goes on
        with it, and from where, is added to what its folder notes, with further facts.
        """
        old = stopped(path, device, simulation)
        put_back(path / METRICS, old.lines)
        folder = RunFolder.reopen(path, old.saved.metrics if old.saved else Mark(0, ""))
        (path / FAILED).unlink(missing_ok=True)
        note_resumed(path, old.simulation, facts)
        run = cls(old.config, old.simulation, folder, Checkpoints(path / CHECKPOINT, old.facts), old.notes)
        if old.saved is not None:
            run.checkpoints.adopt(old.saved)
        return run

    def lost(self) -> bool:
        """Whether another process took the run over: from then on, nothing is written here."""
        return self.lease is not None and not self.lease.ours()

    def save(self, pace: Pace | None = None) -> None:
        """A checkpoint of the run as it is, unless there is one already."""
        number = len(self.simulation.history)
        if self.checkpoints.last == number:
            return
        began, server, table = time.perf_counter(), self.simulation.server, self.simulation.engine.table
        size = self.checkpoints.bytes_to_write(server, table)
        self.checkpoints.save(number, server, table, self.folder.mark(), self.folder.lines())
        if pace is not None:
            pace.saved(began, size)

    def after(
        self, watch: Watch = quiet, stop: Stop = never, every: int | None = None, company: int = 1
    ) -> Callable[[Record], bool]:
        """What to do after every round: record it, save now and then, and say whether to go on.

        ``company`` is the number of runs in a batch, which wait for each other's saves: each has less time for its own.
        """
        pace = Pace(every, share=SHARE / company)

        def step(record: Record) -> bool:
            if self.lost():
                return False
            self.folder.record(record)
            watch(record)
            last = record.round == self.config.rounds
            if stop() and not last:
                self.save()
                return False
            size = self.checkpoints.bytes_to_write(self.simulation.server, self.simulation.engine.table)
            if not last and pace.due(record.round, size):
                self.save(pace)
            return True

        return step

    def finish(self, keep: bool = True, **facts: Any) -> dict[str, Any] | None:
        """The model and the summary, if the last round is done; ``keep`` keeps a checkpoint of it, with all clients."""
        simulation = self.simulation
        if len(simulation.history) < self.config.rounds or self.lost():
            return None
        if keep:
            self.save()
        facts = {"packed": 1, "pack": None, **facts}
        summary = self.folder.finish(Result(simulation.history, simulation.server, simulation), self.config, **facts)
        if not keep:
            self.checkpoints.remove()
        return summary

    def go(
        self, watch: Watch = quiet, stop: Stop = never, every: int | None = None, keep: bool = True
    ) -> tuple[Result, dict[str, Any] | None]:
        """The rounds that are left; the summary is none if ``stop`` ended the run before its last round.

        Args:
            watch: called with every round's record.
            stop: asked after every round; a run that stops is saved first.
            every: rounds between checkpoints (0: only when stopped); by default their cost stays under a twentieth.
            keep: keep the last checkpoint when the run is done, with every client's vectors.
        """
        try:
            result = self.simulation.run(self.after(watch, stop, every))
        except FedsmooError:
            if self.simulation.history and not self.lost():  # the last model that was sound is worth keeping
                with suppress(DiskError):  # but what went wrong first is what a person has to know
                    self.folder.keep_model(self.simulation, self.config)
            raise
        summary = self.finish(keep and every != 0)
        if summary is None and self.lost():
            raise FedsmooError(f"{self.folder.path}: {TAKEN}")
        return result, summary


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped, as its folder tells it; nothing was written yet."""

    config: Config
    simulation: Simulation
    saved: Saved | None
    lines: bytes  # the metrics that belong to it
    facts: dict[str, Any]
    notes: list[str]


def stopped(path: Path, device: str | None = None, simulation: Simulation | None = None) -> Stopped:
    """The run in a folder at its newest sound checkpoint, or at its start; changes nothing on the disk."""
    config = read_config(path)
    if (path / SUMMARY).is_file():
        raise FedsmooError(f"the run in {path} has finished: there is nothing to resume")
    metrics = bytes_of(path / METRICS)
    saved, notes = newest(path / CHECKPOINT, lambda s: refuse_unknown(lines_of(s, metrics), path))
    if saved is None and notes:
        raise FedsmooError(
            f"no checkpoint of {path} can be used; nothing was changed. {'; '.join(notes)}. Put the damaged files back "
            f"if there is a copy of them; else 'fedsmoo run {path / CONFIG} --out NEW' starts the same run again"
        )
    lines = lines_of(saved, metrics) if saved else b""
    if saved is None and metrics:
        notes.append("no checkpoint was written yet: the run starts again at its first round")
    if not metrics.startswith(lines):
        notes.append(f"{path / METRICS} was cut or changed: its rounds are taken from the checkpoint's copy")
    pins = saved.about if saved else read_json(path / STARTED)
    held, old = held_in(pins), config_of(saved.about["config"]) if saved else config
    refuse_changed(path, old, config, held)
    simulation = simulation or assemble(pinned(config, pins, device))
    if config.engine == "auto":
        simulation.engine.pin(why="as the run began")
    if idle_precision(config.precision, simulation.setup.task.device):
        notes.append(f"{IDLE}: the run keeps its name")
    notes += same_crowd(simulation, pins.get("chunk"))
    facts = about(config, simulation)
    refuse_other_data(pins, simulation.setup.task.data, path)
    if saved is not None:
        if saved.about["task"] != facts["task"]:
            raise FedsmooError(f"the data or its division among clients is not what {path} was started with")
        history = parse_records(lines, str(path / METRICS))
        simulation.restore(saved.server(), saved.rows(), history)
    return Stopped(config, simulation, saved, lines, facts, notes + other_machine(pins, facts))


def refuse_changed(path: Path, old: Config, new: Config, held: Mapping[str, str] | None) -> None:
    """Refuse to go on with other settings than a run was started with, or with files that were edited since."""
    now = same_data(new, held)
    if identity(old, held) == identity(new, now):
        return
    changed = "; ".join(differences(old, new, held=now, now=now))
    if changed:
        raise FedsmooError(
            f"{path} was started with other settings ({changed}): put config.toml back, or start a new run; "
            "nothing was changed"
        )
    files = ", ".join(edited(new, held))
    raise FedsmooError(
        f"{files} was edited or removed since {path} was started: put back what it held, or start a new run; "
        "nothing was changed"
    )


def keep_division(simulation: Simulation, path: Path) -> None:
    """Samples per client and class, for the pages and figures that show them; not for crowds nobody can look at."""
    data, indices = simulation.setup.task.data, simulation.indices
    if data.y_train.dim() != 1 or len(indices) > SHOWN:
        return
    labels = data.y_train.cpu().numpy()
    counts = [np.bincount(labels[i], minlength=data.classes).tolist() for i in indices]
    names = list(data.class_names) if data.class_names else None
    text = json.dumps({"counts": counts, "class_names": names}, separators=(",", ":"))
    try:
        (path / "analysis").mkdir(exist_ok=True)
        write_atomically(path / "analysis" / "partition.json", text + "\n")
    except OSError as e:
        raise DiskError(f"cannot write into {path / 'analysis'}: {reason(e)}") from e


def about(config: Config, simulation: Simulation) -> dict[str, Any]:
    """What a checkpoint says of its run: the settings, the task, and what decides the last bit of its numbers."""
    facts = provenance(simulation)
    kept = {k: facts[k] for k in ("engine", "chunk", "ranks", "device", "threads", "versions")}
    return {
        "config": config.to_dict(),
        "task": task_hash(simulation),
        "packed": simulation.company,
        **kept,
    } | files_held(config, simulation.setup.task.data)


def task_hash(simulation: Simulation) -> str:
    """A hash of who holds which samples, and of their labels."""
    digest = hashlib.sha256()
    for samples in simulation.indices:
        digest.update(samples.tobytes() + b"|")
    digest.update(simulation.setup.task.data.y_train.cpu().numpy().tobytes())
    return digest.hexdigest()


def pinned(config: Config, pins: dict[str, Any], device: str | None) -> Config:
    """The config with the engine that was chosen when the run started, so that its numbers stay the same, and with the
    precision that its device computes in."""
    if config.engine == "auto" and pins.get("engine") in ENGINES:
        config = config.replace(engine=pins["engine"])
    config = config if device is None else config.replace(device=device)
    idle = idle_precision(config.precision, make_device(config.device))  # of runs begun before that was refused
    return config.replace(precision="fp32") if idle else config


def same_crowd(simulation: Simulation, before: int | None) -> list[str]:
    """Train as many clients at once as ``before``, for sums depend on it in the last bits; settings win, and say so."""
    if simulation.clients_at_once is None or not before:
        return []
    simulation.engine.pin(before)
    then, now = min(before, simulation.most), simulation.clients_at_once
    return [] if now == then else [f"clients trained at once were {then}, are {now}: {DIFFER}"]


def same_threads(path: Path) -> None:
    """Use as many threads as the run started with: sums of floating-point numbers depend on it."""
    threads = read_json(path / STARTED).get("threads")
    if isinstance(threads, int) and threads > 0:
        fix_threads(threads)


def other_machine(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A line for each difference that may change the last bits of what follows."""
    lines = []
    ranks = () if new["config"]["exact"] else ("ranks",)
    for key in ("engine", *ranks, "packed", "device", "threads"):
        if key in old and old[key] != new[key]:
            lines.append(f"{key} was {old[key]}, is {new[key]}: {DIFFER}")
    torches = [d.get("versions", {}).get("torch") for d in (old, new)]
    if torches[0] not in (None, torches[1]):
        lines.append(f"torch was {torches[0]}, is {torches[1]}: {DIFFER}")
    return lines


def lines_of(saved: Saved, metrics: bytes) -> bytes:
    """The metrics of a checkpoint from the metrics file, or else from its copy; empty if neither has them."""
    mark = saved.metrics
    for lines in (metrics[: mark.bytes], saved.lines()):
        if hashlib.sha256(lines).hexdigest() == mark.sha256:
            return lines
    return b""


def refuse_unknown(lines: bytes, path: Path) -> None:
    """Refuse a checkpoint whose metrics nobody has."""
    if not lines:
        raise FedsmooError(f"{path / METRICS} is not as it was when the checkpoint was written")


def put_back(path: Path, lines: bytes) -> None:
    """Make a metrics file start with the given lines; what it held instead is kept beside it unless it was a part."""
    held = bytes_of(path)
    if held.startswith(lines):
        return
    try:
        if not lines.startswith(held):
            write_durably(path.with_name(path.name + ".changed"), held)
        write_durably(path, lines)
    except OSError as e:
        raise DiskError(f"cannot write {path}: {reason(e)}") from e


__all__ = ["Pace", "Run", "Saved", "same_threads"]
