"""``fedsmoo run`` and ``fedsmoo resume``: one method, one folder."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.commands.console import at_the_end, console, counted, progress
from fedsmoo.commands.interrupt import interruptible
from fedsmoo.commands.options import ConfigFile, Sets, gather, with_settings
from fedsmoo.engines.client_state.tiers import memory_estimate
from fedsmoo.engines.distributed.ranks import is_writer
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.follower import follow
from fedsmoo.runs.origin.contents import data_label, files_held
from fedsmoo.runs.record import Record, Result
from fedsmoo.runs.run import Run, same_threads, stopped
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import DiskError, reason
from fedsmoo.runs.storage.folder import lossless_text, read_config, refuse_used
from fedsmoo.runs.storage.lease import leased
from fedsmoo.runs.tracking import check_names, trackers
from fedsmoo.sweeps.comparison import human_bytes

WORTH_SAYING = 500e6  # bytes
Out = Annotated[Path | None, typer.Option(help="Run folder (default: a new one under runs/).", show_default=False)]
Track = Annotated[
    list[str] | None, typer.Option(help="Also log to tensorboard, wandb or mlflow; may be given more than once.")
]
SaveEvery = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Rounds between checkpoints; 0: only when stopped (default: under 5% of the time).",
        show_default=False,
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was stopped or killed.")]
Device = Annotated[str | None, typer.Option(help="Go on on another device.", show_default=False)]


def new_folder(config: Config) -> Path:
    """``runs/fedsmoo-digits-seed0``, numbered if that exists; made at once, so that nobody else chooses it."""
    name = Path(config.algorithm.rpartition(":")[2] or config.algorithm).name
    stem = f"{name}-{config.dataset.partition(':')[0]}-seed{config.seed}".lower()
    stem = "".join(ch if ch.isalnum() or ch in "-_." else "-" for ch in stem)
    for i in itertools.count(1):
        folder = Path("runs") / (stem if i == 1 else f"{stem}-{i}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as e:
            raise DiskError(f"cannot write the run folder {folder}: {reason(e)}") from e
    raise AssertionError


def begin(config: Config, folder: Path | None, held: ExitStack) -> Run:
    """A run in a folder, or in a new one under ``runs/``, which is made once the run is known to be possible.

    The folder is leased before anything is written into it, until ``held`` is closed.
    """
    lossless_text(config)
    if folder is not None:
        refuse_used(folder)
    simulation = assemble(config)
    folder = folder or new_folder(config)
    lease = held.enter_context(leased(folder))
    run = Run.begin(config, folder, simulation)
    run.lease = lease
    return run


def train(
    config: Config,
    folder: Path | None = None,
    track: Sequence[str] = (),
    every: int | None = None,
    again: str | None = None,
) -> tuple[Path, Result, dict[str, Any]]:
    """Run a config into a folder, with a progress bar; ``again`` is the command that goes on with it, if stopped."""
    if not is_writer():
        follow(assemble(config))
        raise typer.Exit
    check_names(track)
    with ExitStack() as held:
        run = begin(config, folder, held)
        return run.folder.path, *carry_on(run, track, every, again)


def reopen(
    folder: Path,
    device: str | None = None,
    track: Sequence[str] = (),
    every: int | None = None,
    again: str | None = None,
) -> tuple[Result, dict[str, Any]]:
    """Go on with the run in a folder."""
    check_names(track)
    read_config(folder)  # refuses a folder without a run before a lease is taken on it
    with leased(folder) as lease:
        run = Run.reopen(folder, device)
        run.lease = lease
        return carry_on(run, track, every, again)


def memory_note(simulation: Simulation) -> list[str]:
    """What the run will need, said before it starts where it is worth saying."""
    clients, t = len(simulation.indices), simulation.training
    size, text = memory_estimate(simulation.setup, simulation.engine.table, clients, t.cohort, t.rounds)
    return [f"memory: {text}"] if size > WORTH_SAYING else []


def carry_on(
    run: Run, track: Sequence[str] = (), every: int | None = None, again: str | None = None
) -> tuple[Result, dict[str, Any]]:
    """The rounds that are left of a run. Ctrl-C saves and ends the program with a word on how to go on."""
    for note in [*run.notes, *memory_note(run.simulation)]:
        sys.stderr.write(f"fedsmoo: {note}\n")
    config, path, done = run.config, run.folder.path, len(run.simulation.history)
    again = again or f"fedsmoo resume {path}"
    label = run.simulation.setup.algorithm.label
    try:
        with (
            interruptible() as asked,
            trackers(track, config, path, label, done) as log,
            progress(label, config.rounds, done) as show,
        ):

            def watch(record: Record) -> None:
                log.round(record)
                show(record)

            result, summary = run.go(watch, asked, every)
            if summary is not None:
                log.summary(summary)
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped at once; go on from the last checkpoint with: {again}\n")
        raise typer.Exit(130) from None
    if summary is None:
        rounds = len(result.history)
        sys.stderr.write(f"saved after round {rounds} of {config.rounds}; go on with: {again}\n")
        raise typer.Exit(130)
    return result, summary


def _run(
    config: ConfigFile = None,
    sets: Sets = None,
    out: Out = None,
    track: Track = None,
    save_every: SaveEvery = None,
    *,
    flags: dict[str, Any],
) -> None:
    settings = gather(config, sets, flags)
    folder, result, summary = train(settings, out, track or (), save_every)
    print_summary(settings, result, summary, folder)


def resume(folder: Folder, device: Device = None, track: Track = None, save_every: SaveEvery = None) -> None:
    same_threads(folder)
    if not is_writer():
        follow(stopped(folder, device).simulation)
        raise typer.Exit
    result, summary = reopen(folder, device, track or (), save_every)
    print_summary(read_config(folder), result, summary, folder)


def way(summary: dict[str, Any]) -> str:
    """How a run was computed, and why so: what decides the last bits of its numbers."""
    crowd = f"{counted(summary['chunk'], 'client')} at once, " if summary["chunk"] else ""
    return f"{summary['engine']} engine: {summary['engine_why']}; {crowd}{counted(summary['threads'], 'thread')}"


def print_summary(config: Config, result: Result, summary: dict[str, Any], folder: Path) -> None:
    """One screen: what ran, how well, what it cost, and where it lies."""
    out, label, rounds = console(), result.simulation.setup.algorithm.label, counted(summary["rounds"], "round")
    data = data_label(config.dataset, files_held(config, result.simulation.setup.task.data))
    out.print(f"[bold]{label}[/bold] on {data}, {len(result.simulation.indices)} clients, "
              f"{config.cohort} per round, {rounds} ({way(summary)})", soft_wrap=True)  # fmt: skip
    out.print(f"  test accuracy   {at_the_end(summary)}")
    if "validated_round" in summary:
        chosen = f"in round {summary['validated_round']}, the best on the samples held out"
        out.print(f"  by validation   {100 * summary['validated_accuracy']:.2f}%  ({chosen})")
    out.print(f"  test loss       {summary['test_loss']:.4f}")
    out.print(f"  sent            {human_bytes(summary['bytes_up'])} up, {human_bytes(summary['bytes_down'])} down")
    out.print(f"  seconds         {summary['seconds_train']:.1f} training, {summary['seconds_eval']:.1f} evaluation")
    if config.target is not None:
        hit = summary["target_reached"]
        text = "never" if hit is None else f"round {hit['round']}, {human_bytes(hit['bytes'])}, {hit['seconds']:.1f} s"
        out.print(f"  {f'to {round(100 * config.target, 6):g}%':<16}{text}")
    out.print(f"  folder          {folder}", soft_wrap=True)


run = with_settings(_run)
