"""``fedsmoo runs``: which runs there are. ``fedsmoo ledger``: what they sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsmoo.commands.console import counted
from fedsmoo.commands.screen import next_step, print_table
from fedsmoo.core.errors import FedsmooError
from fedsmoo.metrics.quantity import quantity
from fedsmoo.paper.render import Table

if TYPE_CHECKING:
    from fedsmoo.runs.storage.reader import StoredRun

USUAL = ("algorithm", "data_used", "partition", "lr", "seed")  # what runs are told by, if they do not differ
PERSONAL = ("personal_accuracy", "personal_worst_tenth")
AT_THE_END = ("state", "done", "rounds", "test_accuracy")

Root = Annotated[Path, typer.Argument(help="A folder that holds runs, at any depth.")]
Where = Annotated[
    str | None, typer.Option(help="An SQL condition: \"algorithm = 'fedsmoo' AND lr < 0.1\" (default: all).")
]
Show = Annotated[
    str | None,
    typer.Option(help="Columns, separated by commas; all: every one (default: settings in which the runs differ)."),
]
Order = Annotated[str | None, typer.Option(help='An SQL order: "test_accuracy DESC" (default: by path).')]
Limit = Annotated[int | None, typer.Option(min=0, help="At most so many (default: all).")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, every column.")]


def cell(name: str, value: Any, row: Mapping[str, Any] | None = None) -> str:
    """Return a value of the index as text; ``row`` is the run's, which says by what its clients were measured."""
    if value is None:
        lost = row is not None and row["metric"] is not None and row["state"] == "finished"
        return "no number" if lost and name in ("score", "score_last10") else ""
    if isinstance(value, str | bytes):  # where a number belongs, too: anybody may have made the index
        return str(value)
    of_clients = name.endswith(("_deviation", "_worst_tenth"))  # of accuracies, or of what leads in their place
    if of_clients and row is not None and row[f"{name.partition('_')[0]}_accuracy"] is None:
        return quantity(str(row["metric"])).number(value)
    if of_clients or name.endswith(("_accuracy", "_accuracy_last10")):
        return f"{100 * value:.2f}%"
    if name.startswith("bytes"):
        from fedsmoo.runs.traffic import human_bytes

        return human_bytes(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def runs(
    root: Root = Path("runs"),
    where: Where = None,
    show: Show = None,
    order: Order = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    from fedsmoo.sweeps.index import columns, query

    if as_json and show is not None:
        raise FedsmooError("--json has every column, so that --show changes nothing: choose one")
    found = query(root, where, order, limit)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    title = f"{counted(len(found), 'run')} in {root}"
    if show is None:
        print_table(runs_table(title, found), whole="--json")
        suggest_next(found, root)
        return
    names = [n for n in columns() if n != "stamp"] if show.strip() == "all" else [n.strip() for n in show.split(",")]
    for name in names:
        if name not in columns():
            raise FedsmooError(f"--show {name!r} is not a column. Columns: {', '.join(columns())}")
    print_table(Table(title, names, [[cell(n, row[n], row) for n in names] for row in found]), whole="--json")
    suggest_next(found, root)


def suggest_next(found: Sequence[Mapping[str, Any]], root: Path) -> None:
    """Say what to do with these runs: go on with one that is not finished, look at them, or make some."""
    unfinished = [row["path"] for row in found if row["state"] == "unfinished"]
    if unfinished:
        next_step("fedsmoo resume", root / unfinished[0])
    elif found:
        next_step("fedsmoo report", root)
    else:
        next_step("fedsmoo run --algorithm fedsmoo --dataset digits")


def runs_table(title: str, found: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of runs: the settings in which they differ, what became of them, and below what they share."""
    from fedsmoo.sweeps.index import differing_settings

    told = {n: v for n, v in differing_settings(found).items() if n not in AT_THE_END}
    shared = [n for n in USUAL if n not in told]
    if len(found) < 2:  # one run differs from none
        told, shared = {n: [row[n] for row in found] for n in USUAL}, []
    began = ["path", *(["label"] if any(row["label"] for row in found) else [])]
    end = end_columns(found)
    rows = [
        [
            *(cell(n, row[n]) for n in began),
            *(cell(n, v[k]) for n, v in told.items()),
            *(cell(n, row[n], row) for n in end),
        ]
        for k, row in enumerate(found)
    ]
    read = next((row for row in found if row["state"] != "unreadable"), None)
    common = [f"{n} {cell(n, read[n])}" for n in shared if read is not None]
    notes = [f"in common: {', '.join(common)}"] if common else []
    return Table(title, [*began, *told, *end], rows, notes)


def end_columns(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of what became of runs: accuracies, scores of other metrics, and those of personal models."""
    other = [row for row in found if row["metric"] not in (None, "accuracy")]
    end = [n for n in AT_THE_END if n != "test_accuracy" or len(other) < len(found) or not found]
    end += ["metric", "score"] if other else []
    served = ["personal_score" if any(row["personal_score"] is not None for row in other) else PERSONAL[0], PERSONAL[1]]
    return [*end, *(n for n in served if any(row[n] is not None for row in found))]


def ledger_cells(run: StoredRun) -> list[str]:
    """Return how many vectors a client of a run sent and received in a round, and what all of them came to in bytes."""
    from fedsmoo.runs.origin.method import vectors_that_travel
    from fedsmoo.runs.traffic import human_bytes, ledger

    staying = run.facts.get("parameters_staying") or 0
    size, full = (max((run.facts.get(n) or 1) - staying, 0) for n in ("parameters", "parameters_full"))
    method = vectors_that_travel(run.config, run.method)
    book = ledger(method or (1, 1, 0), run.history, size, full)
    counts = [str(n) for n in (book.vectors_up, book.vectors_down, book.vectors_paper)]
    sizes = [human_bytes(n) for n in (book.bytes_up, book.bytes_down, book.bytes_paper, book.bytes_full)]
    if method is None:  # an older run of somebody's own code, which is not run to find out
        counts, sizes[2:] = ["?"] * 3, ["?"] * 2
    return [*counts, *sizes]


def reached_cells(run: StoredRun, target: float, mixed: bool) -> list[str]:
    """Return when a run reached a target, and what it had spent by then; by what, where runs go by several metrics."""
    from fedsmoo.runs.record import lead_of
    from fedsmoo.runs.traffic import first_reached, human_bytes

    hit = first_reached(run.history, target)
    reach = ["never", "", ""] if hit is None else [str(hit.round), human_bytes(hit.bytes), f"{hit.seconds:.1f}"]
    return [lead_of(run.history).title, *reach] if mixed else reach


def show_ledger(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold some.")],
    target: Annotated[
        float | None, typer.Option(help="Also what it took to this test accuracy (0..1), or value of what leads.")
    ] = None,
    per_round: Annotated[bool, typer.Option("--per-round", help="A line for each round.")] = False,
) -> None:
    from fedsmoo.pages.gather import shortest_names
    from fedsmoo.runs.record import lead_of
    from fedsmoo.runs.storage.reader import read_run
    from fedsmoo.runs.storage.walk import require_runs

    vectors = ["vectors up", "down", "paper's count"]
    header = [*vectors, "bytes up", "bytes down", "as the paper counts", "full model"]
    runs = [read_run(folder) for folder in require_runs(folders)]
    leads = {lead_of(run.history) for run in runs}
    for each in leads:
        each.refuse_target(target)
    goal, mixed = [], len(leads) > 1
    if target is not None:
        level = f"{target:g}" if mixed else leads.pop().goal(target)
        goal = [*(["compared by"] if mixed else []), f"round of {level}", "bytes", "seconds"]
    rows = []
    label = any(run.label for run in runs)
    for run, name in zip(runs, shortest_names([run.path for run in runs]), strict=True):
        reach = [] if target is None else reached_cells(run, target, mixed)
        rows.append([name, *([run.label or ""] if label else []), *ledger_cells(run), *reach])
        if per_round:
            lines = [[str(r.round), str(len(r.cohort)), f"{r.bytes_up:,}", f"{r.bytes_down:,}"] for r in run.history]
            print_table(Table(name, ["round", "clients", "bytes up", "bytes down"], lines, [""]))
    found = Table("What travelled", ["run", *(["label"] if label else []), *header, *goal], rows)
    print_table(found, whole="a wider terminal")
    next_step("fedsmoo figure accuracy --axis bytes", *folders)
