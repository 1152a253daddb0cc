"""``fedsmoo sweep``: a grid of runs from one file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fedsmoo
from fedsmoo.commands.console import console, counted, end_score, progress
from fedsmoo.commands.interrupt import interruptible
from fedsmoo.commands.options import with_settings
from fedsmoo.commands.run import SaveEvery, Trust
from fedsmoo.commands.screen import command_without, line_with_name, next_step
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
Already = Annotated[
    Path | None,
    typer.Option("--measured", help="Leave out runs that have a result file in this folder, or below it."),
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
def progress_callbacks(cells: Mapping[Path, Cell]) -> Iterator[dict[str, Any]]:
    """Show the progress of runs, a line for each that finishes or fails; yields the callbacks, Ctrl-C's among them."""
    from fedsmoo.runs.storage.reader import state

    complete = [c.config.rounds for folder, c in cells.items() if state(folder) == "finished"]
    done, total, rounds = len(complete), len(cells), sum(c.config.rounds for c in cells.values())
    label = ""  # of the run that went on last
    with interruptible() as asked, progress("rounds", rounds, sum(complete), last=False) as bar:

        def begun(config: Config, folder: Path, rounds: int) -> None:
            nonlocal label
            label = cells[folder].method
            bar.skip(rounds)

        def watch(config: Config, record: Record) -> None:
            bar.move(record, f"{done}/{total} runs · {label}")

        def finished(config: Config, folder: Path, summary: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            pace = summary["seconds_train"] / max(summary["rounds"], 1)
            before = f"[{done:>{len(str(total))}}/{total}] {end_score(summary):>7}, {pace:.3f} s a round: "
            bar.say(line_with_name(before, folder.name, cells[folder].called))

        yield {
            "watch": watch,
            "begun": begun,
            "finished": finished,
            "failed": lambda config, folder, reason: bar.say(f"failed: {folder.name}{cells[folder].called}: {reason}"),
            "note": lambda line: bar.say(f"fedsmoo: {line}"),
            "stop": asked,
        }


def _sweep(
    file: File,
    out: Out = None,
    minutes: Minutes = None,
    pack: PackSize = None,
    to: Export = None,
    supersede: Supersede = None,
    measured: Already = None,
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
    from fedsmoo.sweeps.sweep import folder_of, open_sweep, unfinished

    require_single_process("fedsmoo sweep")
    root = folder_of(file, out)
    grid = open_sweep(file, flags, root, trust, measured, lambda line: sys.stderr.write(f"fedsmoo: {line}\n"))
    cells, left = grid.folders(root), unfinished(grid, root)
    sys.stderr.write(f"{grid.title}: {counted(len(cells), 'run')}, {len(cells) - len(left)} done\n")
    if dry_run:
        console().print(str(estimate(left)) if left else "nothing is missing", soft_wrap=True)
        next_step(command_without("--dry-run") if left else "fedsmoo runs", *([] if left else [root]))
        return
    try:
        with progress_callbacks(cells) as callbacks:
            outcome = fedsmoo.sweep(
                grid, root, minutes=minutes, pack=pack, to=to, supersede=supersede, keep=keep, retry=retry,
                wait=not no_wait, save_every=save_every, **callbacks,
            )  # fmt: skip
    except KeyboardInterrupt:
        sys.stderr.write("stopped at once; the same command goes on from the last checkpoints\n")
        raise typer.Exit(130) from None
    words = f"{len(outcome.finished)} finished, {len(outcome.failed)} failed, {len(outcome.left)} left"
    console().print(f"{words}; runs in {root}", soft_wrap=True)
    if outcome.finished and not outcome.left:
        next_step("fedsmoo runs", root)
    if outcome.left:
        sys.stderr.write("everything is saved; the same command goes on\n")
        raise typer.Exit(0 if minutes is not None else 130)
    if outcome.failed or outcome.unwritten:
        raise typer.Exit(1)


sweep = with_settings(_sweep)
