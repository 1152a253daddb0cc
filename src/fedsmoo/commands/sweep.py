"""``fedsmoo sweep``: a grid of runs from one file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsmoo.commands.console import at_the_end, console, counted
from fedsmoo.commands.interrupt import polite
from fedsmoo.commands.options import with_settings
from fedsmoo.commands.run import SaveEvery
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.errors import FedsmooError
from fedsmoo.engines.distributed.ranks import alone
from fedsmoo.paper.experiments import read_sweep
from fedsmoo.runs.build import make_algorithm, make_device
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import contents_here
from fedsmoo.runs.record import Record
from fedsmoo.runs.storage.label import write_label
from fedsmoo.sweeps.cost import estimate
from fedsmoo.sweeps.grid import with_contents
from fedsmoo.sweeps.index import refresh
from fedsmoo.sweeps.queue import Orders, Report, state, work_at
from fedsmoo.sweeps.results import export

File = Annotated[Path, typer.Argument(help="A TOML file whose lists make a grid.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/NAME).", show_default=False)]
Minutes = Annotated[
    float | None, typer.Option(min=0, help="Stop after so long, everything saved; call again to go on.")
]
PackSize = Annotated[int | None, typer.Option(min=1, help="Runs in one batch (default: 4 on a GPU, 1 on a CPU).")]
Export = Annotated[Path | None, typer.Option(help="Write each finished run's result file here at once.")]
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
    """One bar for all rounds of all runs, and a way to print lines above it."""
    screen = Console(stderr=True, highlight=False)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=screen, transient=True, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task("rounds", total=total, completed=done)

        def move(rounds: int, text: str) -> None:
            bar.update(task, advance=rounds, description=text or "rounds")

        yield move, lambda line: screen.print(line, markup=False, soft_wrap=True)


def carry_through(
    places: Mapping[Path, Config],
    out: Path,
    minutes: float | None = None,
    pack: int | None = None,
    results: Path | None = None,
    labels: Mapping[str, str] | None = None,
    supersede: str | None = None,
    **more: Any,
) -> Report:
    """Work through the runs of some folders with one display; says each finished and failed run in a line.

    ``labels`` are what the file calls the methods, by the run's name; none: nobody calls them anything.
    """
    configs = list(places.values())
    device = make_device(configs[0].device)
    size = pack if pack is not None else 4 if device.type == "cuda" else 1
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    complete = [c.rounds for folder, c in places.items() if state(folder) == "finished"]
    count, unwritten = [len(complete)], list[Path]()
    for place in places:
        if labels is not None and state(place) != "new":
            write_label(place, labels)
    with polite() as asked, display(sum(c.rounds for c in configs), sum(complete)) as (move, say):

        def watch(config: Config, record: Record) -> None:
            accuracy = "" if record.test_accuracy is None else f" {100 * record.test_accuracy:.1f}%"
            move(1, f"{count[0]}/{len(configs)} runs · {config.algorithm}{accuracy}")

        def finished(config: Config, folder: Path, summary: dict[str, Any]) -> None:
            count[0] += 1
            pace = summary["seconds_train"] / max(summary["rounds"], 1)
            say(f"[{count[0]}/{len(configs)}] {folder.name}: {at_the_end(summary)}, {pace:.3f} s/round")
            if results is not None:
                try:
                    export([folder], results, supersede, say)
                except FedsmooError as e:  # the run is kept, and the others go on
                    unwritten.append(folder)
                    say(f"not exported: {e}")

        def failed(config: Config, folder: Path, reason: str) -> None:
            say(f"failed: {folder.name}: {reason}")

        def begun(config: Config, rounds: int) -> None:
            if labels is not None:
                write_label(next(folder for folder, c in places.items() if c is config), labels)
            move(rounds, "")

        orders = Orders(
            pack=size, watch=watch, finished=finished, failed=failed, begun=begun,
            stop=lambda: asked() or time.monotonic() > end, **more,
        )  # fmt: skip
        report = work_at(places, orders)
    report.unwritten = unwritten
    refresh(out)
    return report


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
    *,
    flags: dict[str, Any],
) -> None:
    alone("fedsmoo sweep")
    sweep = read_sweep(file, flags)
    root = out or Path("runs") / file.stem
    sweep = with_contents(sweep, contents_here([c.config for c in sweep.cells]))
    places = {root / c.name: c.config for c in sweep.cells}
    missing = [c for folder, c in places.items() if state(folder) != "finished"]
    for config in missing:  # said now, not when its turn comes
        refuse_unsound(make_algorithm(config.algorithm, config.algorithm_options))
    sys.stderr.write(f"{sweep.title}: {counted(len(places), 'run')}, {len(places) - len(missing)} done\n")
    if dry_run:
        console().print(str(estimate(missing)) if missing else "nothing is missing", soft_wrap=True)
        return
    try:
        report = carry_through(
            places,
            root,
            minutes,
            pack,
            to,
            sweep.labels,
            supersede,
            keep=keep,
            retry=retry,
            wait=not no_wait,
            every=save_every,
        )
    except KeyboardInterrupt:
        sys.stderr.write("stopped at once; the same command goes on from the last checkpoints\n")
        raise typer.Exit(130) from None
    words = f"{len(report.finished)} finished, {len(report.failed)} failed, {len(report.left)} left"
    console().print(f"{words}; runs in {root}", soft_wrap=True)
    if report.left:
        sys.stderr.write("everything is saved; the same command goes on\n")
        raise typer.Exit(0 if minutes is not None else 130)
    if report.failed or report.unwritten:
        raise typer.Exit(1)


sweep = with_settings(_sweep)
