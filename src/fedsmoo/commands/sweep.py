"""``fedsmoo sweep``: a grid of runs from one file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fedsmoo
from fedsmoo.commands.console import at_the_end, console, counted
from fedsmoo.commands.interrupt import interruptible
from fedsmoo.commands.options import with_settings
from fedsmoo.commands.run import SaveEvery, Trust
from fedsmoo.core.untrusted import lines
from fedsmoo.engines.distributed.launcher import require_single_process

if TYPE_CHECKING:
    from fedsmoo.runs.config import Config
    from fedsmoo.runs.record import Record
    from fedsmoo.sweeps.grid import Cell

File = Annotated[Path, typer.Argument(help="A TOML file whose lists make a grid.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/NAME).", show_default=False)]
Minutes = Annotated[
    float | None,
    typer.Option(min=0, help="Stop after so long, everything saved; call again to go on (default: no limit)."),
]
PackSize = Annotated[int | None, typer.Option(min=1, help="Runs in one batch (default: 4 on a GPU, 1 on a CPU).")]
Export = Annotated[
    Path | None, typer.Option(help="Write each finished run's result file here at once (default: nowhere).")
]
Supersede = Annotated[
    str | None,
    typer.Option(metavar="REASON", help="Replace result files with other numbers; the old ones are kept with REASON."),
]
Keep = Annotated[bool, typer.Option("--keep-checkpoints", help="Keep the checkpoints of finished runs.")]
Retry = Annotated[bool, typer.Option("--retry", help="Try runs again that failed.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would run and what it costs, and stop.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Leave at once what another process is working on.")]


@contextmanager
def display(total: int, done: int) -> Iterator[tuple[Callable[[int, str], None], Callable[[str], None]]]:
    """Show one bar for all rounds of all runs; yields a function that moves it, and one that prints a line above it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True, highlight=False)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=screen, transient=True, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task("rounds", total=total, completed=done)

        def move(rounds: int, text: str) -> None:
            bar.update(task, advance=rounds, description=text or "rounds")

        yield move, lambda line: screen.print(lines(line), markup=False, soft_wrap=True)


@contextmanager
def shown(cells: Mapping[Path, Cell]) -> Iterator[dict[str, Any]]:
    """Show the progress of runs, a line for each that finishes or fails; yields the callbacks, Ctrl-C's among them."""
    from fedsmoo.runs.storage.reader import state

    complete = [c.config.rounds for folder, c in cells.items() if state(folder) == "finished"]
    done, total, rounds = len(complete), len(cells), sum(c.config.rounds for c in cells.values())
    with interruptible() as asked, display(rounds, sum(complete)) as (move, say):

        def watch(config: Config, record: Record) -> None:
            accuracy = "" if record.test_accuracy is None else f" {100 * record.test_accuracy:.1f}%"
            move(1, f"{done}/{total} runs · {config.algorithm}{accuracy}")

        def finished(config: Config, folder: Path, summary: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            pace = summary["seconds_train"] / max(summary["rounds"], 1)
            say(f"[{done}/{total}] {folder.name}: {at_the_end(summary)}, {pace:.3f} s/round")

        yield {
            "watch": watch,
            "begun": lambda config, folder, rounds: move(rounds, ""),
            "finished": finished,
            "failed": lambda config, folder, reason: say(f"failed: {folder.name}: {reason}"),
            "note": lambda line: say(f"fedsmoo: {line}"),
            "stop": asked,
        }


def _sweep(
    file: File,
    out: Out = None,
    minutes: Minutes = None,
    pack: PackSize = None,
    to: Export = None,
    supersede: Supersede = None,
    keep: Keep = False,
    retry: Retry = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    save_every: SaveEvery = None,
    trust: Trust = False,
    *,
    flags: dict[str, Any],
) -> None:
    from fedsmoo.sweeps.cost import estimate
    from fedsmoo.sweeps.sweep import folder_of, missing, open_sweep

    require_single_process("fedsmoo sweep")
    root = folder_of(file, out)
    grid = open_sweep(file, flags, root, trust)
    cells, left = grid.folders(root), missing(grid, root)
    sys.stderr.write(f"{grid.title}: {counted(len(cells), 'run')}, {len(cells) - len(left)} done\n")
    if dry_run:
        console().print(str(estimate(left)) if left else "nothing is missing", soft_wrap=True)
        return
    try:
        with shown(cells) as callbacks:
            outcome = fedsmoo.sweep(
                grid, root, minutes=minutes, pack=pack, to=to, supersede=supersede, keep=keep, retry=retry,
                wait=not no_wait, save_every=save_every, **callbacks,
            )  # fmt: skip
    except KeyboardInterrupt:
        sys.stderr.write("stopped at once; the same command goes on from the last checkpoints\n")
        raise typer.Exit(130) from None
    words = f"{len(outcome.finished)} finished, {len(outcome.failed)} failed, {len(outcome.left)} left"
    console().print(f"{words}; runs in {root}", soft_wrap=True)
    if outcome.left:
        sys.stderr.write("everything is saved; the same command goes on\n")
        raise typer.Exit(0 if minutes is not None else 130)
    if outcome.failed or outcome.unwritten:
        raise typer.Exit(1)


sweep = with_settings(_sweep)
