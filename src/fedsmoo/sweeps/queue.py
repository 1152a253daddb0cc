"""Working through a list of runs in a folder: what is done is skipped, what was begun goes on, others may help."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import first_line
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.client_state.memory import release
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import contents, contents_here, held_in, same_data
from fedsmoo.runs.origin.identity import differences, identity
from fedsmoo.runs.record import Record
from fedsmoo.runs.run import TAKEN, Run, pinned
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import DiskError
from fedsmoo.runs.storage.folder import CONFIG, FAILED, STARTED, SUMMARY, read_config, read_json, write_atomically
from fedsmoo.runs.storage.lease import Lease, acquire
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.pack import Pack, assemble_pack, packable

PAUSE = 0.5  # seconds between looks at what others do
NOBODYS: Mapping[Path, Lease] = {}  # the caller sees to it that nobody else is at work


def to_stderr(line: str) -> None:
    sys.stderr.write(f"fedsmoo: {line}\n")


@dataclass(frozen=True)
class Orders:
    """How to work."""

    pack: int = 1  # runs that may advance in one batch
    keep: bool = False  # keep the checkpoints of finished runs
    retry: bool = False  # try failed runs again
    wait: bool = True  # wait for what others are at, to take over if they die
    every: int | None = None
    watch: Callable[[Config, Record], Any] = lambda config, record: None
    finished: Callable[[Config, Path, dict[str, Any]], Any] = lambda config, folder, summary: None
    failed: Callable[[Config, Path, str], Any] = lambda config, folder, reason: None
    begun: Callable[[Config, int], Any] = lambda config, rounds: None
    note: Callable[[str], Any] = to_stderr  # what a person should know besides
    stop: Callable[[], bool] = lambda: False


@dataclass
class Report:
    """What came of it, by run folder."""

    finished: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)
    left: list[Path] = field(default_factory=list)
    unwritten: list[Path] = field(default_factory=list)  # finished, but with a result file of other numbers in the way


def state(folder: Path) -> str:
    """``finished``, ``failed``, ``begun`` or ``new``."""
    for name, word in ((SUMMARY, "finished"), (FAILED, "failed"), (CONFIG, "begun")):
        if (folder / name).is_file():
            return word
    return "new"


def places_of(configs: Sequence[Config], root: Path) -> dict[Path, Config]:
    """Each config by the folder of its run: named by what it is, with the content of the data that lies here now."""
    return {root / run_name(c, held): c for c, held in zip(configs, contents_here(configs), strict=True)}


def work(configs: Sequence[Config], root: Path, orders: Orders) -> Report:
    """Carry out every config in its folder below ``root``; returns when all are done or ``stop`` says so."""
    return work_at(places_of(configs, root), orders)


def work_at(places: Mapping[Path, Config], orders: Orders) -> Report:
    """Carry out every config in the folder given for it, as :func:`places_of` names it."""
    strangers = {p: why for p, config in places.items() if state(p) == "finished" and (why := stranger(p, config))}
    for path, why in strangers.items():
        orders.failed(places[path], path, why)
    places = {p: config for p, config in places.items() if p not in strangers}
    tried: set[Path] = set()

    def is_open(path: Path) -> bool:
        word = state(path)
        return word != "finished" and not (word == "failed" and (path in tried or not orders.retry))

    while (todo := [p for p in places if is_open(p)]) and not orders.stop():
        batch = take(todo, places, orders.pack, is_open)
        if batch:
            tried.update(batch)
            try:
                carry_out({p: places[p] for p in batch}, orders, batch)
            finally:
                for held in batch.values():
                    held.release()
                release()
        elif orders.wait:
            time.sleep(PAUSE)
        else:
            break
    report = Report(failed=dict(strangers))
    for path in places:
        word = state(path)
        if word == "failed":
            report.failed[path] = read_json(path / FAILED).get("error", "")
        else:
            (report.finished if word == "finished" else report.left).append(path)
    return report


def take(
    todo: Sequence[Path],
    places: Mapping[Path, Config],
    pack: int,
    is_open: Callable[[Path], bool] = lambda path: state(path) != "finished",
) -> dict[Path, Lease]:
    """Lease the first run nobody is at, and others that may share its batch, ``pack`` in all."""
    batch: dict[Path, Lease] = {}
    for path in todo:
        if len(batch) >= max(pack, 1):
            break
        if batch and not packable([*(places[p] for p in batch), places[path]]):
            continue
        held = acquire(path)
        if held is None:
            continue
        if not is_open(path):  # somebody finished it in between, or could not
            held.release()
            continue
        batch[path] = held
    return batch


def carry_out(batch: dict[Path, Config], orders: Orders, leases: Mapping[Path, Lease] = NOBODYS) -> None:
    """One run, or several in one batch; a failed one is noted in its folder, and does not stop the others.

    A run whose lease is no longer ours ends where it is: it belongs to another process.
    """
    if len(batch) > 1:
        try:
            if together(batch, orders, leases):
                return
        except DiskError:
            raise
        except (FedsmooError, torch.OutOfMemoryError) as e:
            # Alone, each goes on from its last checkpoint, and if one of them is the culprit, it is found.
            orders.note(f"{len(batch)} runs cannot go on in one batch, so they go on one by one: {first_line(e)}")
        release()
    for path, config in batch.items():
        if state(path) == "finished" or orders.stop() or lost(path, leases):
            continue
        try:
            run = open_run(path, config, leases)
            announce(run, config, orders)
            run.simulation.run(run.after(partial(orders.watch, config), orders.stop, orders.every))
            conclude(run, orders)
        except (FedsmooError, torch.OutOfMemoryError) as e:
            if lost(path, leases):
                continue
            if isinstance(e, DiskError):
                raise
            why = str(e) if isinstance(e, FedsmooError) else f"the memory ran out: {first_line(e)}"
            give_up(path, why)
            orders.failed(config, path, why)


def give_up(path: Path, why: str) -> None:
    """Note in a run's folder why it cannot go on, even if it could not begin."""
    try:
        write_atomically(path / FAILED, json.dumps({"error": why}) + "\n")
    except OSError as e:
        raise DiskError(f"{why}; nor can a note of it be written into {path}: {e.strerror}") from e


def open_run(
    path: Path, config: Config, leases: Mapping[Path, Lease], simulation: Simulation | None = None, **facts: Any
) -> Run:
    """A run at its start, or where it was stopped; one that failed before it had a config begins again."""
    if (path / CONFIG).is_file():
        refuse_another(path, config)
        run = Run.reopen(path, config.device, simulation, **facts)
    else:
        run = Run.begin(config, path, simulation, **facts)
        (path / FAILED).unlink(missing_ok=True)
    run.lease = leases.get(path)
    return run


def refuse_another(path: Path, config: Config) -> None:
    """Refuse a folder that somebody began with other settings: its numbers would pass for those of ``config``.

    Whether its data is the same is seen when it is reopened.
    """
    held, begun = held_in(read_json(path / STARTED)), read_config(path)
    now = same_data(config, held)
    if identity(begun, held) != identity(config, now):
        changed = "; ".join(differences(begun, config, held=held, now=now))
        raise FedsmooError(f"{path} holds another run ({changed}): move it away, or choose another folder")


def stranger(path: Path, config: Config) -> str:
    """Why the finished run in a folder that is named by what it should hold is another one; nothing if it is not."""
    try:
        facts, done = read_json(path / STARTED), read_config(path)
    except FedsmooError as e:
        return str(e)
    held = held_in(facts)
    if run_name(done, held) == path.name:
        return ""
    changed = "; ".join(differences(done, config, held=held))
    return f"{path} holds another run ({changed}): move it away, or choose another folder"


def lost(path: Path, leases: Mapping[Path, Lease]) -> bool:
    """Whether another process took a run over that this one had leased."""
    return path in leases and not leases[path].ours()


def together(batch: dict[Path, Config], orders: Orders, leases: Mapping[Path, Lease]) -> bool:
    """Several runs in one batch; whether the engine could do that."""
    configs = one_engine(batch)
    simulations = assemble_pack(configs) if configs else []
    if not simulations or not all(isinstance(s.engine, Batched) for s in simulations):
        return False
    runs: list[Run] = []
    pack = Pack(simulations)  # which has one engine for all: the folders of new runs are to name it
    company = {"packed": len(batch), "pack": members(list(batch.values()), simulations)}
    for (path, config), simulation in zip(batch.items(), simulations, strict=True):
        runs.append(open_run(path, config, leases, simulation, **company))
        announce(runs[-1], config, orders)
    pack.run([r.after(partial(orders.watch, r.config), orders.stop, orders.every, len(runs)) for r in runs])
    for run in runs:
        conclude(run, orders, **company)
    return True


def members(configs: Sequence[Config], simulations: Sequence[Simulation]) -> list[str]:
    """The names of the runs in a batch, in its order."""
    return [run_name(c, contents(c, s.setup.task.data)) for c, s in zip(configs, simulations, strict=True)]


def one_engine(batch: Mapping[Path, Config]) -> list[Config]:
    """The configs with the engine that those of them that were begun have; none if these have several."""
    begun = {pinned(c, read_json(p / STARTED), None).engine for p, c in batch.items() if (p / CONFIG).is_file()}
    if len(begun) > 1:
        return []
    return [c.replace(engine=next(iter(begun), c.engine)) for c in batch.values()]


def announce(run: Run, config: Config, orders: Orders) -> None:
    """Where a run goes on, and what a person should know about how it was reopened."""
    for line in run.notes:
        orders.note(f"{run.folder.path.name}: {line}")
    orders.begun(config, len(run.simulation.history))


def conclude(run: Run, orders: Orders, **facts: Any) -> None:
    """The results of a run, if its last round is done and it is ours."""
    summary = run.finish(orders.keep, **facts)
    if summary is not None:
        orders.finished(run.config, run.folder.path, summary)
    elif run.lost():
        orders.note(f"{run.folder.path.name}: {TAKEN}")
