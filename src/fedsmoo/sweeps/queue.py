"""Work through runs in their folders, idempotently, as one of perhaps several workers that share them by leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import first_line
from fedsmoo.engines.client_state.memory import release
from fedsmoo.engines.threads import fix_threads
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import hash_files_and_data, hash_files_but_data, refuse_edited, without_unrecorded
from fedsmoo.runs.origin.identity import differences, identity
from fedsmoo.runs.origin.imports import edited_imports
from fedsmoo.runs.origin.method import own_method_of_config, recorded_or_own_method
from fedsmoo.runs.origin.pins import use_same_threads
from fedsmoo.runs.record import Record
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.fence import fenced_by
from fedsmoo.runs.storage.files import DiskError, read_json
from fedsmoo.runs.storage.folder import forget_failure, record_failure
from fedsmoo.runs.storage.lease import TAKEN, Lease, TakenOver, acquire, unless_taken
from fedsmoo.runs.storage.mend import mend_or_forget
from fedsmoo.runs.storage.names import FAILED
from fedsmoo.runs.storage.reader import read_run, state
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.pack import Pack, assemble_pack, names_in_batch, packable, with_one_engine

PAUSE = 0.5  # seconds between looks at what others do
NO_LEASES: Mapping[Path, Lease] = {}  # the caller sees to it that nobody else works on the runs


def ignore(*arguments: Any) -> None:
    """Ignore an event."""


@dataclass(frozen=True)
class Worker:
    """How this process works through runs, and what it calls when: with a run's config, its folder, and more."""

    pack: int = 1  # runs that may advance in one batch
    keep: bool = False  # keep the checkpoints of finished runs
    retry: bool = False  # try failed runs again
    wait: bool = True  # wait for runs that others have leased, to take over if they die
    save_every: int | None = None  # rounds between checkpoints; 0: only when stopped
    watch: Callable[[Config, Record], Any] = ignore  # after every round of every run
    begun: Callable[[Config, Path, int], Any] = ignore  # when a run begins or goes on, with the rounds done already
    finished: Callable[[Config, Path, dict[str, Any]], Any] = ignore  # when a run is done, with its summary
    failed: Callable[[Config, Path, str], Any] = ignore  # when a run cannot go on, with the reason
    note: Callable[[str], Any] = ignore  # with a line that a person should know
    stop: Callable[[], bool] = lambda: False  # asked after every round; if true, all is saved and the work ends
    work: str = "sweep"  # what it is called in errors


@dataclass
class Outcome:
    """What became of runs, by folder."""

    finished: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)  # with the reason
    left: list[Path] = field(default_factory=list)  # not finished: stopped, or leased by another process
    unwritten: list[Path] = field(default_factory=list)  # finished, but with a result file of other numbers in the way


def work(configs: Sequence[Config], root: Path, worker: Worker) -> Outcome:
    """Carry out every config in a folder below ``root``, named by its settings and by what its files hold now."""
    held = hash_files_and_data(configs)
    names = [root / run_name(c, h, own_method_of_config(c)) for c, h in zip(configs, held, strict=True)]
    return work_at(dict(zip(names, configs, strict=True)), worker, dict(zip(names, held, strict=True)))


def work_at(places: Mapping[Path, Config], worker: Worker, held: Mapping[Path, Mapping[str, str]]) -> Outcome:
    """Carry out every config in the folder given for it; returns when all are done, or when ``worker.stop`` says so.

    Idempotent: finished runs are skipped, and runs that were begun go on. ``held`` is what the user's files hold, by
    folder, as in :func:`identity`.

    Raises:
        FedsmooError: if a file was edited since, when the turn of a run that needs it comes.
        DiskError: if a folder cannot be written.
    """
    others = {p: why for p, c in places.items() if state(p) == "finished" and (why := why_another_run(p, c, held[p]))}
    for path, why in others.items():
        worker.failed(places[path], path, why)
    places = {p: config for p, config in places.items() if p not in others}
    tried: set[Path] = set()

    def is_open(path: Path) -> bool:
        word = state(path)
        return word != "finished" and not (word == "failed" and (path in tried or not worker.retry))

    def check(path: Path) -> None:
        refuse_edited(places[path], held[path], f"this {worker.work} began")

    while (todo := [p for p in places if is_open(p)]) and not worker.stop():
        leases = lease_batch(todo, places, worker.pack, is_open, check)
        if leases:
            tried.update(leases)
            try:
                execute({p: places[p] for p in leases}, worker, leases)
            finally:
                for lease in leases.values():
                    lease.release()
                release()
        elif worker.wait:
            time.sleep(PAUSE)
        else:
            break
    return outcome_of(places, others)


def outcome_of(places: Iterable[Path], others: Mapping[Path, str]) -> Outcome:
    """Read from their folders what became of runs; ``others`` are folders that hold another run, with the reason."""
    outcome = Outcome(failed=dict(others))
    for path in places:
        word = state(path)
        if word == "failed":
            outcome.failed[path] = read_json(path / FAILED).get("error", "")
        else:
            (outcome.finished if word == "finished" else outcome.left).append(path)
    return outcome


def lease_batch(
    todo: Sequence[Path],
    places: Mapping[Path, Config],
    pack: int,
    is_open: Callable[[Path], bool] = lambda path: state(path) != "finished",
    check: Callable[[Path], Any] = ignore,
) -> dict[Path, Lease]:
    """Lease the first run that nobody else has, and others that may share its batch, ``pack`` in all.

    ``check`` is called before a run is leased; what it raises ends the search, and nothing stays leased.
    """
    batch: dict[Path, Lease] = {}
    try:
        for path in todo:
            if len(batch) >= max(pack, 1):
                break
            if batch and not packable([*(places[p] for p in batch), places[path]]):
                continue
            check(path)
            lease = acquire(path)
            if lease is None:
                continue
            if not is_open(path):  # somebody finished it in between, or could not
                lease.release()
                continue
            batch[path] = lease
    except BaseException:
        for lease in batch.values():
            lease.release()
        raise
    return batch


def execute(batch: dict[Path, Config], worker: Worker, leases: Mapping[Path, Lease] = NO_LEASES) -> None:
    """Carry out one run, or several as one batch; a run that fails does not stop the others.

    The failure is recorded in the run's folder. A run whose lease another process took over is abandoned where it is.
    """
    if len(batch) > 1:
        try:
            if execute_together(batch, worker, leases):
                return
        except DiskError:
            raise
        except (FedsmooError, torch.OutOfMemoryError) as e:
            # Alone, each goes on from its last checkpoint, and if one of them is the culprit, it is found.
            worker.note(f"{len(batch)} runs cannot go on in one batch, so they go on one by one: {first_line(e)}")
        release()
    for path, config in batch.items():
        if worker.stop():
            continue
        try:
            execute_owned(path, config, worker, leases)
        except TakenOver:
            worker.note(f"{path.name}: {TAKEN}")


def execute_owned(path: Path, config: Config, worker: Worker, leases: Mapping[Path, Lease]) -> None:
    """Carry out one run, unless it has finished, and record its failure; ``TakenOver`` if another process has it."""
    lease = leases.get(path)
    if lease is not None and not lease.ours():
        raise TakenOver(str(path))
    if state(path) == "finished":
        return
    try:
        with unless_taken(lease):
            execute_one(path, config, worker, leases)
    except (TakenOver, DiskError):
        raise
    except (FedsmooError, torch.OutOfMemoryError) as e:
        why = str(e) if isinstance(e, FedsmooError) else f"the memory ran out: {first_line(e)}"
        with unless_taken(lease), fenced_by(lease):
            record_failure(path, why)
        worker.failed(config, path, why)


def execute_one(path: Path, config: Config, worker: Worker, leases: Mapping[Path, Lease]) -> None:
    """Carry out one run, with as many threads as it began with: the last bits of its numbers depend on that."""
    threads = torch.get_num_threads()
    use_same_threads(path)
    try:
        run = open_run(path, config, leases)
        announce(run, config, worker)
        result = run.go(watch_rounds(worker, config), worker.stop, worker.save_every, worker.keep)
        if result.summary is not None:
            worker.finished(run.config, path, result.summary)
    finally:
        fix_threads(threads)


def watch_rounds(worker: Worker, config: Config) -> Callable[[Record], None]:
    """Return what is called with every round of a run; whatever the watcher returns, the run goes on."""

    def watch(record: Record) -> None:
        worker.watch(config, record)

    return watch


def open_run(
    path: Path, config: Config, leases: Mapping[Path, Lease], simulation: Simulation | None = None, **facts: Any
) -> Run:
    """Begin a run, or reopen it where it was stopped; one that failed before it had a config begins again.

    So does one that lost its config, as by a power cut, before it had a checkpoint.
    """
    with fenced_by(leases.get(path)):
        mended = mend_or_forget(path)
    if mended is not None:
        if why := why_another_run(path, config):
            raise FedsmooError(why)
        run = reopen(path, config.device, simulation, leases.get(path), **facts)
        run.notes[:0] = mended
        return run
    run = Run.begin(config, path, simulation, leases.get, **facts)
    with fenced_by(leases.get(path)):
        forget_failure(path)
    return run


def why_another_run(path: Path, config: Config, held: Mapping[str, str] | None = None) -> str:
    """Return why the run in a folder is not that of the config, for which it would pass; empty if it is.

    Without ``held``, its data is taken for the same: that is seen when it is reopened.
    """
    try:
        run = read_run(path)
        now = hash_files_but_data(config, run.held) if held is None else without_unrecorded(held, run.held)
        methods = recorded_or_own_method(run.config, run.method, config), own_method_of_config(config)
        if run.facts.get("changes"):
            return f"{path} holds a run whose numbers a callback changed on the way: choose another folder"
        if identity(run.config, run.held, methods[0]) == identity(config, now, methods[1]):
            edited = ", ".join(edited_imports(config, run.facts))
            return edited and f"{path} holds a run by another {edited}, edited since: choose another folder"
    except FedsmooError as e:
        return str(e)
    changed = "; ".join(differences(run.config, config, held=run.held, now=now, methods=methods))
    return f"{path} holds another run ({changed}): move it away, or choose another folder"


def execute_together(batch: dict[Path, Config], worker: Worker, leases: Mapping[Path, Lease]) -> bool:
    """Carry out several runs as one batch; returns whether their engine could do that."""
    configs = with_one_engine(batch)
    simulations = assemble_pack(configs) if configs else []
    if not simulations or not all(s.engine.can_share for s in simulations):
        return False
    runs: list[Run] = []
    pack = Pack(simulations)  # which has one engine for all: the folders of new runs are to name it
    shared = {"packed": len(batch), "pack": names_in_batch(list(batch.values()), simulations)}
    for (path, config), simulation in zip(batch.items(), simulations, strict=True):
        runs.append(open_run(path, config, leases, simulation, **shared))
        announce(runs[-1], config, worker)
    calls = [r.after_round(watch_rounds(worker, r.config), worker.stop, worker.save_every, len(runs)) for r in runs]
    pack.run(calls)
    for run in runs:
        summary = run.write_results(worker.keep, **shared)
        if summary is not None:
            worker.finished(run.config, run.folder.path, summary)
        elif run.lost():
            worker.note(f"{run.folder.path.name}: {TAKEN}")
    return True


def announce(run: Run, config: Config, worker: Worker) -> None:
    """Tell where a run goes on, and what a person should know about how it was reopened."""
    for line in run.notes:
        worker.note(f"{run.folder.path.name}: {line}")
    with fenced_by(run.lease):
        worker.begun(config, run.folder.path, len(run.simulation.history))
