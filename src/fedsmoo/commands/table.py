"""``fedsmoo table``: the paper's tables, ours beside the printed numbers. ``fedsmoo results``: the files they need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from click.core import ParameterSource

from fedsmoo.commands.command import Group, ReadingCommand
from fedsmoo.commands.console import counted
from fedsmoo.commands.options import with_settings
from fedsmoo.commands.screen import command_without, next_step, print_table
from fedsmoo.commands.sweep import Minutes, PackSize, Supersede, progress_callbacks
from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.user_code import judged, refuse_all
from fedsmoo.engines.distributed.launcher import require_single_process
from fedsmoo.paper.render import FORMATS
from fedsmoo.runs.origin.typed import command
from fedsmoo.sweeps.bases import EXPERIMENTS

if TYPE_CHECKING:
    from fedsmoo.paper.reproduce import PaperTable

Name = Annotated[
    str | None,
    typer.Argument(help="\n\n".join(f"{name}: {about}" for name, about in EXPERIMENTS.items()), show_default=False),
]
Columns = Annotated[
    str | None,
    typer.Option(help="Some of them only, separated by commas, such as cifar10 (default: all).", show_default=False),
]
Methods = Annotated[
    str | None, typer.Option(help="Some of them only, separated by commas (default: all).", show_default=False)
]
Seeds = Annotated[
    str | None,
    typer.Option(help="Seeds, separated by commas (default: 0; with --no-run all measured ones).", show_default=False),
]
Scale = Annotated[
    float, typer.Option(help="Share of the paper's rounds: 0.1 is an honest small version, marked as such.")
]
Format = Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="The same as --format markdown.")]
Compact = Annotated[bool, typer.Option("--compact", help="accuracy: one table, a cell per column.")]
Out = Annotated[Path, typer.Option(help="Folder of the runs.")]
Results = Annotated[
    Path | None,
    typer.Option(help="Folder of measured results (default: results, if there is one).", show_default=False),
]
NoRun = Annotated[bool, typer.Option("--no-run", help="Show what has been measured here, or else for the package.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what is missing and what it costs, and stop.")]
Figure = Annotated[Path | None, typer.Option(help="curves: a folder for one picture a column.", show_default=False)]
Update = Annotated[
    bool, typer.Option("--update", help="Rewrite the tables between markers in the files given instead.")
]
Check = Annotated[bool, typer.Option("--check", help="With --update: change nothing, fail if a table is out of date.")]
Files = Annotated[list[Path] | None, typer.Argument(help="With --update: the files.", show_default=False)]


def _table(
    name: Name = None,
    files: Files = None,
    columns: Columns = None,
    methods: Methods = None,
    seeds: Seeds = None,
    scale: Scale = 1.0,
    form: Format = "text",
    markdown: Markdown = False,
    compact: Compact = False,
    out: Out = Path("runs/paper"),
    results: Results = None,
    figure: Figure = None,
    no_run: NoRun = False,
    dry_run: DryRun = False,
    minutes: Minutes = None,
    pack: PackSize = None,
    update_files: Update = False,
    check: Check = False,
    *,
    flags: dict[str, Any],
) -> None:
    refuse_idle(name, files, form, markdown)
    if update_files:
        with judged(refuse_all):
            update([*([Path(name)] if name else []), *(files or [])], results, check)
        return
    if form not in FORMATS:  # said now, not when the runs are done
        raise unknown("format", form, FORMATS)
    if name is None:
        raise FedsmooError(f"which table? {', '.join(EXPERIMENTS)}")
    from fedsmoo.core.untrusted import to_stderr
    from fedsmoo.paper.reproduce import opened, seed_numbers, words
    from fedsmoo.paper.selection import Selection

    selection = Selection(name, words(columns or ()), words(methods or ()), seed_numbers(seeds or ()), scale, compact)
    if no_run:
        click.get_current_context().with_resource(judged(refuse_all))
    made = opened(selection, out, results, not no_run, flags, to_stderr)
    if not no_run:
        made = complete(made, dry_run, minutes, pack)
    if dry_run:
        return
    say_on_other_data(made)
    show_tables(made, "markdown" if markdown else form)
    for path in made.draw(figure) if figure is not None else ():
        sys.stderr.write(f"picture: {path}\n")
    end_if_incomplete(made, minutes)
    suggest_next(no_run, form == "text" and not markdown)


def refuse_idle(name: str | None, files: Sequence[Path] | None, form: str, markdown: bool) -> None:
    """Refuse flags and files that would change nothing beside the others."""
    context = click.get_current_context()
    typed = {p.name: p.opts[0] for p in context.command.params if given(context, str(p.name))}
    if "update_files" in typed:
        for flag in (typed[n] for n in typed if n not in ("name", "files", "results", "update_files", "check")):
            raise FedsmooError(f"{flag} changes nothing of --update: what a table shows, the markers in the file say")
        return
    if "check" in typed:
        raise FedsmooError("--check is of files with tables in them: give --update and the files, too")
    if files:
        raise FedsmooError(f"{files[0]}: files are for --update; a table is named by one word")
    if markdown and "form" in typed and form != "markdown":
        raise FedsmooError(f"--markdown and --format {form} say two things: choose one")
    for other in ("dry_run", "minutes", "pack"):
        if "no_run" in typed and other in typed:
            raise FedsmooError(f"--no-run carries nothing out, so that {typed[other]} changes nothing: choose one")
    if "compact" in typed and name != "accuracy":
        raise FedsmooError(f"--compact is of the table accuracy, not of {name}: leave it out")


def given(context: click.Context, name: str) -> bool:
    """Return whether a flag or argument was typed."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def end_if_incomplete(made: PaperTable, minutes: float | None) -> None:
    """End the program where runs of a table are left or failed: what its minutes left is no failure."""
    if made.outcome.left:
        raise typer.Exit(0 if minutes is not None else 130)
    if made.outcome.failed:
        raise typer.Exit(1)


def suggest_next(no_run: bool, plain: bool) -> None:
    """Say what to do once a table is read: find out what the rest of it costs, or put it into a paper."""
    if no_run:
        next_step(f"{command_without('--no-run')} --dry-run")
    elif plain:
        next_step(f"{command()} --format latex")


def show_tables(made: PaperTable, form: str) -> None:
    """Print tables in a format; as plain text they are fitted to the terminal."""
    if form != "text":
        print(made.render(form), end="")
        return
    for k, each in enumerate(made.tables):
        if k:
            print()
        print_table(each)


def update(documents: list[Path], results: Path | None, check: bool) -> None:
    """Rewrite the tables between markers in files, and say how many of them changed."""
    from fedsmoo.paper.document import update as rewrite

    changed = rewrite(documents, results, check)
    sys.stderr.write(f"{counted(len(documents), 'file')}, {len(changed)} changed\n")


def say_on_other_data(made: PaperTable) -> None:
    """Say how many runs a table leaves out because their data has other content than its name promises."""
    from fedsmoo.runs.origin.samples import other_content_label

    for (dataset, content), count in made.on_other_data.items():
        label = other_content_label(dataset, content)
        sys.stderr.write(f"fedsmoo: {counted(count, 'run')} on {label} not shown here: --data PATH shows them\n")


def complete(made: PaperTable, dry_run: bool, minutes: float | None, pack: int | None) -> PaperTable:
    """Say what the missing runs of a table will cost, and carry them out unless that is all that was asked."""
    from fedsmoo.sweeps.cost import estimate
    from fedsmoo.sweeps.queue import Worker

    require_single_process("fedsmoo table")
    missing = made.missing
    if not missing.cells:
        if dry_run:
            sys.stderr.write(f"{missing.title}: nothing is missing\n")
            next_step(f"{command_without('--dry-run')} --no-run")
        return made
    sys.stderr.write(f"{missing.title}: {estimate([c.config for c in missing.cells])}\n")
    if dry_run:
        next_step(command_without("--dry-run"))
        return made
    with progress_callbacks(missing.folders(made.out)) as callbacks:
        made = made.completed(Worker(**callbacks, work="table"), minutes, pack)
    if made.outcome.left:
        sys.stderr.write("everything is saved; the same command goes on\n")
    return made


table = with_settings(_table, leave_out=("seed", "algorithm"))

app = typer.Typer(cls=Group, help="Measured results: small files behind the tables.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measured results: small files behind the tables."""


@app.command("export", cls=ReadingCommand)
def export_results(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    to: Annotated[Path, typer.Option(help="Where the files go.")] = Path("results"),
    supersede: Supersede = None,
) -> None:
    """Write one small JSON file for each finished run."""
    from fedsmoo.sweeps.results import export

    written = export(runs, to, supersede)
    if not written:
        raise FedsmooError(f"no finished run in {', '.join(map(str, runs))}: there is nothing to export")
    for path in written:
        print(path)
    next_step("fedsmoo report", to)
