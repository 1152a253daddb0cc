"""Carry out a simulation for somebody at a prompt, who sees how far it is, stops it, and may go on with it."""

from __future__ import annotations

import dataclasses
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, FedsmooWarning
from fedsmoo.engines.distributed.launcher import world
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.objects import objects_in
from fedsmoo.runs.origin.provenance import command
from fedsmoo.runs.record import Callback, Record
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.run import Run, start_run
from fedsmoo.runs.signals import Interrupt, deferred_interrupt, not_ignored
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.lease import leased
from fedsmoo.runs.watch.display import display
from fedsmoo.runs.watch.state import with_state

ROUND_ENDS = "the round ends first; press Ctrl-C again to stop at once\n"


def carry_out_simulation(
    simulation: Simulation,
    config: Config,
    callback: Callback | None = None,
    out: Path | None = None,
    progress: bool | str | None = "auto",
) -> Result:
    """Carry out the rounds that are left of a simulation, in memory or in a new folder, and return the result.

    Ctrl-C lets the round end and returns the result so far, marked ``interrupted``; a second one does so at once.
    """
    caught, label, done = False, simulation.setup.algorithm.label, len(simulation.history)
    simulation.observer = None  # a callback of the rounds before looks on no more
    look = None if callback is None else with_state(callback, simulation)
    with interruptible(out is not None) as asked, display(label, config.rounds, done, progress=progress) as bar:

        def shown(record: Record) -> Any:
            bar.move(record)
            return None if look is None else look(record)

        try:
            if out is None:
                result = simulation.run(shown, asked)
            else:
                result = carry_out_in_folder(simulation, config, out, shown, asked)
        except KeyboardInterrupt:
            if not simulation.history:
                raise
            caught, result = True, Result(list(simulation.history), simulation.server, simulation, out)
    stopped = (caught or asked()) and len(result.history) < config.rounds
    if stopped and asked.signal == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)  # to whoever handles it outside
    if stopped:
        words = f"interrupted after round {len(result.history)} of {config.rounds}"
        warnings.warn(f"{words}; result.continue_() goes on", FedsmooWarning, stacklevel=3)
    return dataclasses.replace(result, config=config, interrupted=stopped)


@contextmanager
def interruptible(kept: bool) -> Iterator[Interrupt]:
    """Let the first Ctrl-C (and SIGTERM, where a run is kept in a folder) end a run after its round."""
    if world() > 1:  # all ranks must stop at the same round: those who launched them see to it
        yield Interrupt()
        return
    signals = [number for number in not_ignored() if kept or number == signal.SIGINT]
    with deferred_interrupt(lambda: sys.stderr.write(ROUND_ENDS), signals) as asked:
        yield asked


def carry_out_in_folder(
    simulation: Simulation,
    config: Config,
    folder: Path,
    callback: Callback | None = None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Carry out a simulation in a new folder, which is given the rounds that are done already.

    What only its program can make again is noted as the program's.
    """
    return start_run(config, folder, simulation, facts_of(config), callback=callback, stop=stop, begun=write_rounds)


def facts_of(config: Config) -> dict[str, Any]:
    """Return how to make a run again that objects of this program take part in: by the program."""
    return {"again": command()} if objects_in(config) else {}


def write_rounds(run: Run) -> None:
    """Write the rounds that a simulation has done into its new folder."""
    for record in run.simulation.history:
        run.folder.record(record)


def save(result: Result, folder: Path) -> Path:
    """Write a result as a new run folder, with the vectors of the server and of all clients; returns the folder."""
    simulation, config = result.simulation, config_of_result(result)
    result.refuse_moved_on("save")
    with leased(folder) as lease:
        run = Run.begin(config, folder, simulation, lambda path: lease, **facts_of(config))
        write_rounds(run)
        run.save()
        run.write_results()
    return folder


def continue_result(
    result: Result, rounds: int | None, callback: Callback | None, out: Path | None, progress: bool | str | None
) -> Result:
    """Carry out more rounds of a result's simulation, or those that are left; returns the result of all rounds."""
    result.refuse_moved_on("continue_")
    simulation, config = result.simulation, config_of_result(result)
    if world() > 1:
        raise FedsmooError("continue_: several ranks share this run, and the others have ended: resume its folder")
    if rounds is not None and (type(rounds) is not int or rounds < 1):
        raise FedsmooError(f"rounds is {rounds!r}, but must be how many more rounds there shall be, such as 10")
    done = len(simulation.history)
    if rounds is None and done >= config.rounds:
        raise FedsmooError(f"all {done} rounds are done: say how many more there shall be, such as continue_(10)")
    total = config.rounds if rounds is None else done + rounds
    simulation.training = dataclasses.replace(simulation.training, rounds=total)
    return carry_out_simulation(simulation, config.replace(rounds=total), callback, out, progress)


def config_of_result(result: Result) -> Config:
    """Return the config of a result; ``FedsmooError`` if it was made without one."""
    if result.config is None:
        raise FedsmooError("this result has no settings: it was not made by simulate, run, resume or load")
    return result.config
