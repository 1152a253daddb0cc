"""``fedsmoo run`` and ``fedsmoo resume``: one method, one folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fedsmoo
from fedsmoo.commands.console import console, counted, end_in_words, print_hanging, progress
from fedsmoo.commands.interrupt import interruptible
from fedsmoo.commands.options import ConfigFile, Sets, gather_config, with_settings
from fedsmoo.core.untrusted import lines
from fedsmoo.runs.config import Config

if TYPE_CHECKING:
    from fedsmoo.runs.record import Record
    from fedsmoo.runs.results.result import Result
    from fedsmoo.runs.run import Run
    from fedsmoo.runs.simulation import Simulation

WORTH_SAYING = 500e6  # bytes
Out = Annotated[Path | None, typer.Option(help="Run folder (default: a new one under runs/).", show_default=False)]
Track = Annotated[
    list[str] | None,
    typer.Option(
        help="Also log to tensorboard, wandb or mlflow; clients: a curve for each client, too; may be repeated."
    ),
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
Device = Annotated[str | None, typer.Option(help="Go on on another device (default: the run's).", show_default=False)]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run code that a folder names, though you have not run it before; said once.")
]


def train(config: Config, out: Path | None = None, again: str | None = None, **options: Any) -> Result:
    """Carry out a run with a progress bar; ``again`` is the command that goes on with it, if it is stopped."""
    return with_display(partial(fedsmoo.run, config, out, **options), again)


def reopen(folder: Path, again: str | None = None, **options: Any) -> Result:
    """Go on with the run in a folder, with a progress bar; ``again`` as in :func:`train`."""
    return with_display(partial(fedsmoo.resume, folder, **options), again)


def with_display(carry_out: Callable[..., Result], again: str | None = None) -> Result:
    """Call the library with what a person sees of a run: notes, a progress bar, and what Ctrl-C does.

    Raises:
        typer.Exit: if the run was stopped, after a word on how to go on.
    """
    display = Display()
    try:
        with display.open:
            result = carry_out(begun=display.begun, callback=display.round, stop=display.stop)
    except KeyboardInterrupt:
        if display.run is None:  # nothing was written
            raise
        again = again or f"fedsmoo resume {quote(str(display.run.folder.path))}"
        sys.stderr.write(f"stopped at once; go on from the last checkpoint with: {again}\n")
        raise typer.Exit(130) from None
    if result.folder is None:  # a rank other than 0, which prints nothing
        raise typer.Exit
    if result.summary is None:
        rounds, again = result.simulation.training.rounds, again or f"fedsmoo resume {quote(str(result.folder))}"
        sys.stderr.write(f"saved after round {len(result.history)} of {rounds}; go on with: {again}\n")
        raise typer.Exit(130)
    return result


class Display:
    """What a person sees of a run, from its first round until ``open`` is closed."""

    def __init__(self) -> None:
        self.open = ExitStack()
        self.run: Run | None = None

    def begun(self, run: Run) -> None:
        """Say what is worth knowing before the first round, and show a progress bar from then on."""
        self.run = run
        for note in [*run.notes, *memory_note(run.simulation)]:
            sys.stderr.write(f"fedsmoo: {lines(note)}\n")
        label, done = run.simulation.setup.algorithm.label, len(run.simulation.history)
        self.asked = self.open.enter_context(interruptible())
        self.bar = self.open.enter_context(progress(label, run.config.rounds, done))

    def round(self, record: Record) -> None:
        """Show a round."""
        self.bar.move(record)

    def stop(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.asked()


def memory_note(simulation: Simulation) -> list[str]:
    """Return a line about the memory that a run will need, if it is much."""
    from fedsmoo.engines.client_state.tiers import memory_estimate

    clients, t = len(simulation.indices), simulation.training
    size, text = memory_estimate(simulation.setup, simulation.engine.table, clients, t.cohort, t.rounds)
    task = simulation.setup.task
    kept = (
        f"samples: {task.data.nbytes / 1e9:.1f} GB in the machine's memory, batches are copied to {task.device} ahead"
    )
    return [f"memory: {text}"] * (size > WORTH_SAYING) + [kept] * task.staged


def _run(
    config: ConfigFile = None,
    sets: Sets = None,
    out: Out = None,
    track: Track = None,
    save_every: SaveEvery = None,
    *,
    flags: dict[str, Any],
) -> None:
    settings = gather_config(config, sets, flags)
    print_summary(settings, train(settings, out, track=track or (), save_every=save_every))


def resume(
    folder: Folder, device: Device = None, track: Track = None, save_every: SaveEvery = None, trust: Trust = False
) -> None:
    from fedsmoo.runs.storage.reader import read_config

    result = reopen(folder, device=device, track=track or (), save_every=save_every, trust=trust)
    print_summary(read_config(folder), result)


def how_computed(summary: dict[str, Any]) -> str:
    """Describe how a run was computed, and why so: this decides the last bits of its numbers."""
    crowd = f"{counted(summary['chunk'], 'client')} at once, " if summary["chunk"] else ""
    return f"{summary['engine']}: {summary['engine_why']}; {crowd}{counted(summary['threads'], 'thread')}"


def print_summary(config: Config, result: Result) -> None:
    """Print one screen: what ran, how well, what it cost, and the folder."""
    from fedsmoo.runs.origin.contents import input_hashes
    from fedsmoo.runs.origin.samples import data_label
    from fedsmoo.runs.results.summary import read_ending
    from fedsmoo.runs.traffic import human_bytes

    summary = result.summary or {}
    out, label, rounds = console(), result.simulation.setup.algorithm.label, counted(summary["rounds"], "round")
    data = data_label(config.dataset, input_hashes(config, result.simulation.setup.task.data))
    out.print(f"[bold]{label}[/bold] on {data}, {len(result.simulation.indices)} clients, "
              f"{config.cohort} per round, {rounds}", soft_wrap=True)  # fmt: skip
    print_hanging(out, "  engine          ", how_computed(summary))
    for line in score_lines(summary):
        out.print(f"  {line}")
    out.print(f"  sent            {human_bytes(summary['bytes_up'])} up, {human_bytes(summary['bytes_down'])} down")
    out.print(f"  seconds         {summary['seconds_train']:.1f} training, {summary['seconds_eval']:.1f} evaluation")
    if config.target is not None:
        hit = result.target_reached
        text = "never" if hit is None else f"round {hit.round}, {human_bytes(hit.bytes)}, {hit.seconds:.1f} s"
        out.print(f"  {f'to {read_ending(summary).lead.goal(config.target)}':<16}{text}")
    out.print(f"  folder          {result.folder}", soft_wrap=True)
    out.print(f"  next            fedsmoo report {quote(str(result.folder))}", soft_wrap=True)


def score_lines(summary: dict[str, Any]) -> list[str]:
    """Say how well a run ended, in lines: what leads, other metrics, by validation, for clients, and the loss."""
    from fedsmoo.metrics.quantity import quantity
    from fedsmoo.runs.results.summary import read_ending

    end = read_ending(summary)
    lines = [f"{end.lead.title:<15} {end_in_words(summary)}"]
    for name, value in list((summary.get("metrics") or {}).items())[1:]:
        other = quantity(name)
        lines.append(f"{other.title:<15} {'undefined' if value is None else other.text(value)}")
    if "validated_round" in summary:
        chosen = f"in round {summary['validated_round']}, the best on the samples held out"
        if end.validation is not None and end.lead != end.validation[0]:
            held, value = end.validation
            lines.append(f"{'held out':<15} {held.label} {held.text(value)}  ({chosen})")
        elif end.validated is not None:
            lines.append(f"{'by validation':<15} {end.lead.text(end.validated)}  ({chosen})")
    for who, words in (("personal", "personal models"), ("global", "the global one")):
        if who in end.personal:
            mean, spread, worst = end.personal[who]
            by = end.served_by
            lines.append(
                f"{words:<15} {by.text(mean)} ± {by.number(spread)} over clients, the worst tenth {by.text(worst)}"
            )
    if summary.get("test_loss") is not None and end.lead.name != "loss":
        lines.append(f"{'test loss':<15} {summary['test_loss']:.4f}")
    return lines


run = with_settings(_run)
