"""``fedsmoo table``: the paper's tables, ours beside the printed numbers. ``fedsmoo results``: the files they need."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.commands.compare import parse_seeds
from fedsmoo.commands.console import counted
from fedsmoo.commands.options import with_settings
from fedsmoo.commands.sweep import Minutes, PackSize, Supersede, carry_through
from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.engines.distributed.ranks import alone
from fedsmoo.pages.figures.curves import accuracy_curves, hanning
from fedsmoo.paper import tables
from fedsmoo.paper.experiments import EXPERIMENTS, experiment
from fedsmoo.paper.render import FORMATS, Table, render
from fedsmoo.runs.origin.contents import contents, contents_here, held_in, other_content
from fedsmoo.runs.origin.identity import identity
from fedsmoo.sweeps.cost import estimate
from fedsmoo.sweeps.grid import Sweep, with_contents
from fedsmoo.sweeps.queue import places_of
from fedsmoo.sweeps.results import collect, export

RESULTS = Path("results")  # unless another folder is named; nothing was measured where it is not there
WINDOW = 20  # rounds of the Hanning window

Name = Annotated[str | None, typer.Argument(help=" | ".join(EXPERIMENTS), show_default=False)]
Words = Annotated[str | None, typer.Option(show_default=False, help="Some of them only, separated by commas.")]
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
NoRun = Annotated[bool, typer.Option("--no-run", help="Only show what has been measured.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what is missing and what it costs, and stop.")]
Figure = Annotated[Path | None, typer.Option(help="curves: a folder for one picture a column.", show_default=False)]
Update = Annotated[
    bool, typer.Option("--update", help="Rewrite the tables between markers in the files given instead.")
]
Check = Annotated[bool, typer.Option("--check", help="With --update: change nothing, fail if a table is out of date.")]
Files = Annotated[list[Path] | None, typer.Argument(help="With --update: the files.", show_default=False)]

MARKED = re.compile(r"(<!-- table: (?P<arguments>.*?) -->\n).*?(<!-- /table -->)", re.DOTALL)


def build(sweep: Sweep, found: tables.Found, compact: bool = False) -> list[Table]:
    """The tables of an experiment from what was measured."""
    kind, grid, title = sweep.about["kind"], tables.Grid(sweep, found), sweep.title + mark(sweep)
    if kind == "accuracy":
        return tables.accuracy(grid, title, compact)
    if kind == "curves":
        return tables.curves(grid, title, hanning, WINDOW)
    return getattr(tables, kind)(grid, title)


def mark(sweep: Sweep) -> str:
    """For every title, which is all that some formats keep: what is not as in the paper, if anything."""
    notes = [note.partition(": ")[2].rstrip(".") for note in sweep.about.get("notes", [])]
    return f", not the paper's setting ({'; '.join(notes)})" if notes else ""


def pictures(sweep: Sweep, found: tables.Found, folder: Path) -> list[Path]:
    """One picture a column: smoothed accuracy over rounds."""
    grid, out = tables.Grid(sweep, found), []
    folder.mkdir(parents=True, exist_ok=True)
    for column in grid.columns:
        runs = {m: [r.history for r in grid[m, column]] for m in grid.methods if grid[m, column]}
        if runs:
            path = folder / (re.sub(r"[^\w.]+", "-", column) + ".png")
            accuracy_curves(runs, path, column + mark(sweep).replace(", ", "\n", 1), smooth=WINDOW)
            out.append(path)
    return out


def split(words: str | None) -> list[str]:
    return [w.strip() for w in words.split(",") if w.strip()] if words else []


@dataclass(frozen=True)
class Wish:
    """What part of a table is wanted, and how it is to look: what a marker in a document may say."""

    name: str
    columns: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    scale: float = 1.0
    compact: bool = False

    @classmethod
    def parse(cls, text: str) -> Wish:
        """The words of a marker: ``accuracy --columns cifar10.dirichlet-0.1 --compact``."""
        words = shlex.split(text)
        values: dict[str, Any] = {}
        rest = iter(words[1:])
        for word in rest:
            option = word.removeprefix("--")
            if option == "compact":
                values["compact"] = True
            elif option in ("columns", "methods"):
                values[option] = tuple(split(next(rest, "")))
            elif option == "seeds":
                values["seeds"] = tuple(parse_seeds(next(rest, "")))
            elif option == "scale":
                values["scale"] = float(next(rest, ""))
            else:
                raise FedsmooError(f"a table's marker says {text!r}: {word!r} is not understood there")
        return cls(words[0] if words else "", **values)

    def sweep(self, overrides: dict[str, Any] | None = None) -> Sweep:
        return experiment(self.name, self.columns, self.methods, self.seeds, self.scale, overrides)


def updated(text: str, found: tables.Found) -> str:
    """A document with every marked table made again."""

    def fresh(match: re.Match[str]) -> str:
        wish = Wish.parse(match["arguments"])
        return match[1] + render(build(wish.sweep(), found, wish.compact), "markdown") + match[3]

    return MARKED.sub(fresh, text)


def measured(folder: Path) -> Path:
    """A folder of results that somebody named, or needs."""
    if not folder.is_dir():
        raise FedsmooError(f"--results {folder}: there is no such folder")
    return folder


def update(files: Sequence[Path], results: Path, check: bool) -> None:
    """Rewrite (or check) the tables of documents from ``results`` alone; nothing is written if one cannot be."""
    if not files:
        raise FedsmooError("--update: which files? such as 'fedsmoo table --update README.md'")
    found = collect((), measured(results))
    old = {path: marked(path) for path in files}
    stale = {path: new for path, text in old.items() if (new := updated(text, found)) != text}
    names = " ".join(map(str, stale))
    if check and stale:
        raise FedsmooError(f"tables out of date in {', '.join(map(str, stale))}: run 'fedsmoo table --update {names}'")
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    sys.stderr.write(f"{counted(len(files), 'file')}, {len(stale)} changed\n")


def marked(path: Path) -> str:
    """A document that has a table to update."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise FedsmooError(f"cannot read {path}: {e.strerror}") from e
    if not MARKED.search(text):
        raise FedsmooError(
            f"{path} has no marker: a table goes between the lines '<!-- table: accuracy -->' and '<!-- /table -->'"
        )
    return text


def run_missing(sweep: Sweep, found: tables.Found, out: Path, dry_run: bool, **more: Any) -> bool:
    """Carry out what has not been measured; says first what it will cost. Whether all is there now."""
    alone("fedsmoo table")
    missing = list({c.identity: c.config for c in sweep.cells if c.identity not in found}.values())
    if not missing:
        return True
    sys.stderr.write(f"{sweep.title}: {estimate(missing)}\n")
    if dry_run:
        return False
    report = carry_through(places_of(missing, out), out, **more)
    if report.left:
        sys.stderr.write("everything is saved; the same command goes on\n")
    return not report.left


def on_other_data(sweep: Sweep, found: tables.Found) -> Counter[tuple[str, str]]:
    """How many runs would be in a table but for the content of their data, by the data set's name and that content."""
    cells = {c.identity for c in sweep.cells}
    plain = {identity(c.config, without_data(c.held or contents(c.config))) for c in sweep.cells}
    others = Counter[tuple[str, str]]()
    for key, run in found.items():
        held = held_in(run.facts) or {}
        if key not in cells and "data_content" in held and identity(run.config, without_data(held)) in plain:
            others[run.config.dataset, held["data_content"]] += 1
    return others


def without_data(held: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in held.items() if k != "data_content"}


def on_measured_data(sweep: Sweep, found: tables.Found) -> Sweep:
    """The sweep on the data that most of its runs were made with, where none was made with what the names say."""
    others = on_other_data(sweep, found)
    if not others or any(c.identity in found for c in sweep.cells):
        return sweep
    content = {name: {"data_content": value} for (name, value), _ in reversed(others.most_common())}
    return with_contents(sweep, [{**contents(c.config), **content.get(c.config.dataset, {})} for c in sweep.cells])


def _table(
    name: Name = None,
    files: Files = None,
    columns: Words = None,
    methods: Words = None,
    seeds: Words = None,
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
    if update_files:
        update([Path(n) for n in ([name] if name else [])] + list(files or []), results or RESULTS, check)
        return
    if form not in FORMATS:  # said now, not when the runs are done
        raise unknown("format", form, FORMATS)
    if name is None:
        raise FedsmooError(f"which table? {', '.join(EXPERIMENTS)}")
    wish = Wish(
        name, tuple(split(columns)), tuple(split(methods)), tuple(parse_seeds(seeds) if seeds else ()), scale, compact
    )
    sweep = wish.sweep(flags)
    results = RESULTS if results is None else measured(results)
    found = collect([out], results)
    if not no_run or "data" in flags:  # the data that lies there is what runs are, or were, made with
        sweep = with_contents(sweep, contents_here([c.config for c in sweep.cells]))
    else:
        sweep = on_measured_data(sweep, found)
    done = no_run or run_missing(sweep, found, out, dry_run, minutes=minutes, pack=pack)
    if dry_run:
        return
    found = found if no_run else collect([out], results)
    for (dataset, content), count in on_other_data(sweep, found).items():
        label = other_content(dataset, content)
        sys.stderr.write(f"fedsmoo: {counted(count, 'run')} on {label} not shown here: --data PATH shows them\n")
    print(render(build(sweep, found, compact), "markdown" if markdown else form), end="")
    for path in pictures(sweep, found, figure) if figure is not None else ():
        sys.stderr.write(f"picture: {path}\n")
    if not done:
        raise typer.Exit(0 if minutes is not None else 130)


table = with_settings(_table, leave_out=("seed", "algorithm"))

app = typer.Typer(help="Measured results: small files behind the tables.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measured results: small files behind the tables."""


@app.command("export")
def export_results(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    to: Annotated[Path, typer.Option(help="Where the files go.")] = Path("results"),
    supersede: Supersede = None,
) -> None:
    """Write one small JSON file for each finished run."""
    written = export(runs, to, supersede)
    if not written:
        raise FedsmooError(f"no finished run in {', '.join(map(str, runs))}: there is nothing to export")
    for path in written:
        print(path)
