"""Carry out a run in its folder: record it round by round, save it now and then, stop it at will."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, as_path
from fedsmoo.engines.distributed.launcher import is_writer
from fedsmoo.engines.distributed.ranks import Ended
from fedsmoo.engines.failure import explained
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import write_counts
from fedsmoo.runs.origin.contents import input_hashes
from fedsmoo.runs.origin.identity import identity_facts
from fedsmoo.runs.origin.imports import imported_facts
from fedsmoo.runs.origin.provenance import checkpoint_facts, command_to_repeat, provenance
from fedsmoo.runs.origin.trust import code_in, remember
from fedsmoo.runs.record import Callback, Record, refuse_wrong_arguments
from fedsmoo.runs.results.clients import client_scores
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.runs.signals import deferred_interrupt, interrupts_left_to_rank_0, not_ignored
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import SHARE, Checkpoints, Pace
from fedsmoo.runs.storage.fence import fenced_by
from fedsmoo.runs.storage.folder import RunFolder, config_text, lossless_text, new_folder, refuse_used
from fedsmoo.runs.storage.lease import TAKEN, Lease, TakenOver, leased, unless_taken
from fedsmoo.runs.storage.names import CHECKPOINT
from fedsmoo.runs.tracking import refuse_unknown_trackers, trackers
from fedsmoo.runs.watch.state import says_stop, with_state

Stop = Callable[[], bool]


def run(
    config: Config | Mapping[str, Any] | str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    *,
    track: Sequence[str] = (),
    save_every: int | None = None,
    callback: Callback | None = None,
    stop: Stop | None = None,
    begun: Callable[[Run], Any] | None = None,
    **settings: Any,
) -> Result:
    """Train one method and keep the run in a folder, as ``fedsmoo run`` does.

    Args:
        config: the settings: a ``Config``, a mapping such as ``{"algorithm": "fedsmoo", "rounds": 50}``, or the path of
            a TOML file.
        out: the run's folder (default: a new one under ``runs/``). The result has it as ``folder``.
        track: also log to ``"tensorboard"``, ``"wandb"`` or ``"mlflow"``.
        save_every: rounds between checkpoints; 0: only when stopped (default: under 5% of the time).
        callback: called with every round's record, or ``(record, state)`` if it takes two arguments; returning
            ``False`` stops the run, which is saved.
        stop: asked after every round; returning ``True`` stops the run, which is saved. By default Ctrl-C does: it
            lets the round end, saves, and then raises ``KeyboardInterrupt``; a second one does so at once.
        begun: called once with the :class:`Run`, before its first round.
        settings: override ``config``: any setting, or a hyper-parameter of the method or model (``r=0.1``).

    Returns:
        The result; its ``summary`` is ``None`` if the run was stopped, and :func:`fedsmoo.resume` goes on with it.

    Raises:
        FedsmooError: if settings are wrong or contradict each other, the folder holds a run, or training diverges.
    """
    refuse_unknown_trackers(track)
    refuse_wrong_arguments(save_every, callback)
    resolved, folder = make_config(config, settings), None if out is None else as_path(out, "out")
    return start_run(resolved, folder, track=track, save_every=save_every, callback=callback, stop=stop, begun=begun)


def start_run(
    config: Config,
    folder: Path | None,
    simulation: Simulation | None = None,
    facts: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Begin a run as :meth:`Run.begin` does and carry it out with the options of :func:`carry_out`.

    A rank other than 0 trains its clients instead, and writes nothing.
    """
    if not is_writer():
        return serve_rank_0(simulation or assemble(config))
    with ExitStack() as held:
        begun = Run.begin(config, folder, simulation, lambda path: held.enter_context(leased(path)), **facts or {})
        return carry_out(begun, **options)


def carry_out(
    run: Run,
    track: Sequence[str] = (),
    save_every: int | None = None,
    callback: Callback | None = None,
    stop: Stop | None = None,
    begun: Callable[[Run], Any] | None = None,
) -> Result:
    """Carry out the rounds that are left of a run. The arguments are those of :func:`run`."""
    if begun is not None:
        begun(run)
    config, path, done = run.config, run.folder.path, len(run.simulation.history)
    label, interrupt = run.simulation.setup.algorithm.label, None
    with ExitStack() as held:
        if stop is None:
            stop = interrupt = held.enter_context(deferred_interrupt(signals=not_ignored()))
        log = held.enter_context(trackers(track, config, path, label, done))
        look = None if callback is None else with_state(callback, run.simulation)

        def watch(record: Record) -> Any:
            log.round(
                record, lambda: client_scores(Result(run.simulation.history, run.simulation.server, run.simulation))
            )
            return look(record) if look is not None else None

        result = run.go(watch, stop, save_every)
        if result.summary is not None:
            log.summary(result.summary)
    if interrupt is not None and interrupt.signal is not None and result.summary is None:
        signal.raise_signal(interrupt.signal)  # to whoever handles it outside: Python raises KeyboardInterrupt
    return result


def serve_rank_0(simulation: Simulation) -> Result:
    """Train this rank's clients in the rounds that rank 0 starts, and answer it, until it ends the job.

    A rank other than 0 prints and writes nothing.
    """
    with interrupts_left_to_rank_0(), suppress(Ended):
        simulation.run()
        simulation.engine.serve()
    return Result(simulation.history, simulation.server, simulation)


@dataclass
class Run:
    """A simulation with its folder and checkpoints."""

    config: Config
    simulation: Simulation
    folder: RunFolder
    checkpoints: Checkpoints
    notes: list[str] = field(default_factory=list)  # what a person should know about how it was begun or reopened
    lease: Lease | None = None  # none: the caller sees to it that nobody else is at work

    @classmethod
    def begin(
        cls,
        config: Config,
        path: Path | None = None,
        simulation: Simulation | None = None,
        lease: Callable[[Path], Lease | None] = lambda path: None,
        **facts: Any,
    ) -> Run:
        """Begin a run in a new folder, which is written once the run is known to be possible.

        Args:
            config: the settings, resolved.
            path: the folder (default: a new one under ``runs/``).
            simulation: what the config describes, at its start, if there is one already.
            lease: takes the lease on the folder before anything is written into it.
            facts: noted in the folder besides.

        Raises:
            FedsmooError: if the folder holds a run, or the settings cannot be kept in a file.
        """
        text = lossless_text(config)
        if path is not None:
            refuse_used(path)
        simulation = simulation or assemble(config)
        notes = remember(code_in(config))
        path = path or new_folder(config)
        held = lease(path)
        if config.split is None and config.partition == "natural":  # how many clients there are is known now
            config = config.replace(clients=len(simulation.indices))
            text = config_text(config)
        started = provenance(simulation)
        started["started"] = started.pop("finished")
        started |= {"again": command_to_repeat(config), **facts, **input_hashes(config, simulation.setup.task.data)}
        started |= imported_facts(config) | identity_facts(config, simulation.setup.algorithm, started)
        with unless_taken(held), fenced_by(held):
            folder = RunFolder(path, text, started)
            write_counts(simulation.setup.task.data, simulation.indices, path)
        about = {**checkpoint_facts(config, simulation), "started": started}
        checkpoints = Checkpoints(path / CHECKPOINT, about)
        return cls(config, simulation, folder, checkpoints, notes, held)

    def lost(self) -> bool:
        """Whether another process took the run over: since then, nothing is written here."""
        return self.lease is not None and not self.lease.ours()

    def save(self, pace: Pace | None = None) -> None:
        """Write a checkpoint of the run as it is, unless there is one already."""
        rounds = len(self.simulation.history)
        if self.checkpoints.last == rounds:
            return
        began, server, table = time.perf_counter(), self.simulation.server, self.simulation.engine.table
        size = self.checkpoints.bytes_to_write(server, table)
        with fenced_by(self.lease):
            self.checkpoints.save(rounds, server, table, self.folder.mark(), self.folder.lines())
        if pace is not None:
            pace.learn(began, size)

    def after_round(
        self,
        callback: Callback = lambda record: None,
        stop: Stop = lambda: False,
        save_every: int | None = None,
        runs_in_batch: int = 1,
    ) -> Callable[[Record], bool]:
        """Return what is called after every round: it records the round, saves now and then, and says whether to go on.

        Runs that share a batch wait for each other's saves: each has less time for its own.
        """
        pace = Pace(save_every, share=SHARE / runs_in_batch)

        def step(record: Record) -> bool:
            with fenced_by(self.lease):
                self.folder.record(record)
            stopped = says_stop(callback(record))
            last = record.round == self.config.rounds
            if (stop() or stopped) and not last:
                self.save()
                return False
            size = self.checkpoints.bytes_to_write(self.simulation.server, self.simulation.engine.table)
            if not last and pace.due(record.round, size):
                self.save(pace)
            return True

        def step_of_owner(record: Record) -> bool:
            try:
                with unless_taken(self.lease):
                    return step(record)
            except TakenOver:
                return False

        return step_of_owner

    def write_results(self, keep: bool = True, **facts: Any) -> dict[str, Any] | None:
        """Write the model and the summary, and return the summary; ``None`` if rounds are left, or the run was lost.

        ``keep`` keeps a checkpoint of the end, with every client's vectors.
        """
        if len(self.simulation.history) < self.config.rounds or self.lost():
            return None
        facts = {"packed": 1, "pack": None, **facts}
        try:
            with unless_taken(self.lease), fenced_by(self.lease):
                if keep:
                    self.save()
                summary = self.folder.write_results(self.simulation, self.config, **facts)
                if not keep:
                    self.checkpoints.remove()
                return summary
        except TakenOver:
            return None

    def go(
        self,
        callback: Callback = lambda record: None,
        stop: Stop = lambda: False,
        save_every: int | None = None,
        keep: bool | None = None,
    ) -> Result:
        """Carry out the rounds that are left; the summary is none if the run was stopped before its last round.

        ``keep`` keeps the last checkpoint when the run is done (default: if ``save_every`` is not 0); the other
        arguments are those of :func:`run`.

        Raises:
            FedsmooError: if training diverges (the last sound model is kept), or another process took the run over.
        """
        with unless_taken(self.lease):
            try:
                result = self.simulation.run(self.after_round(callback, stop, save_every))
            except FedsmooError:
                if self.simulation.history:  # the last model that was sound is worth keeping
                    # But what went wrong first has to be known: statistics of the model may not be had any more.
                    with suppress(FedsmooError), fenced_by(self.lease), explained(self.simulation.engine.name):
                        self.folder.keep_model(self.simulation, self.config)
                raise
        summary = self.write_results(save_every != 0 if keep is None else keep)
        if summary is None and self.lost():
            raise TakenOver(f"{self.folder.path}: {TAKEN}")
        return dataclasses.replace(result, folder=self.folder.path, summary=summary, config=self.config)
