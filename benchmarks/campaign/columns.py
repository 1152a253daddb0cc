"""Tables of docs/results.md over all columns of the paper's table 1, where the paper has fewer: rounds and bytes to a
target accuracy, and the clients' drift; ``benchmarks/documents/tables.py`` writes them.
"""

from __future__ import annotations

import re
from functools import cache

from benchmarks.campaign.plan import made
from fedsmoo.paper.cells import bytes_beside, rounds_to, spread
from fedsmoo.paper.experiments import experiment, published
from fedsmoo.paper.render import Table, render
from fedsmoo.runs.record import TEN
from fedsmoo.sweeps.bases import description
from fedsmoo.sweeps.results import Measured

SEEDS = (0, 1, 2)
DRIFTS = {"before": "drift", "after": "drift_after"}


@cache
def runs(column: str, seeds: tuple[int, ...] = (0,)) -> dict[str, list[Measured]]:
    """The measured runs of a column of table 1, by method."""
    out: dict[str, list[Measured]] = {}
    for cell in experiment("accuracy", (column,), seeds=seeds).cells:
        out.setdefault(cell.method, []).extend([made()[cell.identity]] if cell.identity in made() else [])
    return out


def target(column: str) -> int:
    """The lower target that the paper prints for a column, or else for the harder one of its kind, in per cent.

    >>> target("10%-of-100 cifar10.dirichlet-0.6"), target("5%-of-200 cifar100.pathological-20")
    (68, 33)
    """
    who, _, task = column.partition(" ")
    kind = task.rpartition("-")[0]
    there = [c.split(" to ") for c in published()["rounds_to"][who]["columns"]]
    return min(int(goal) for name, goal in there if name == task or name.rpartition("-")[0] == kind)


def reached() -> str:
    """Rounds of every method to a target in every column, and its bytes beside FedAvg's."""
    rows = []
    for column in description("accuracy")["columns"]:
        found, goal = runs(column, SEEDS), target(column) / 100
        ratios = [bytes_beside(mine, found["FedAvg"], goal) for mine in found.values()]
        cells = [
            rounds_to(mine, goal) + ("" if ratio is None else f" ({ratio:.2f})")
            for mine, ratio in zip(found.values(), ratios, strict=True)
        ]
        rows.append([column, f"{target(column)}%", *cells])
    note = (
        "Rounds until the test accuracy first reaches the target, and in brackets the bytes that travelled by then, "
        "FedAvg's being 1, over the seeds that both have; a dash if 800 rounds did not do. Targets are the lower of "
        "the paper's two, which it prints for half of the columns. ± is the standard deviation over seeds 0, 1 and 2, "
        "where a method has them; a cell without it is of seed 0."
    )
    title = "Rounds to a target accuracy, and bytes beside FedAvg's, in all columns"
    return render([Table(title, ["column", "target", *runs(column)], rows, [note])], "markdown").rstrip("\n")


def at_the_end(run: Measured, name: str) -> float | None:
    """The mean drift of the last ten rounds; none where a file does not have it."""
    values = run.curve.get(name, [])[-TEN:]
    return sum(values) / len(values) if values else None


def drift() -> str:
    """How far clients end from the model before and after the server's step, in CIFAR-10's Dirichlet columns."""
    columns = [c for c in description("accuracy")["columns"] if re.search(r"cifar10\.dirichlet", c)]
    rows = []
    for method in runs(columns[0]):
        cells = []
        for column in columns:
            for name in DRIFTS.values():
                found = [d for run in runs(column, SEEDS)[method] if (d := at_the_end(run, name)) is not None]
                cells.append(spread(found, 3))
        rows.append([method, *cells])
    header = ["method", *(f"{c.replace(' cifar10.', ' ')}, {when}" for c in columns for when in DRIFTS)]
    note = (
        "The mean of ||w_i - w||^2 over the cohort and the last ten rounds, w being the model before the server's step "
        "or after it; mean and standard deviation over the seeds whose files have it: those made before the second was "
        "recorded are blank there."
    )
    return render([Table("Drift of the clients, CIFAR-10", header, rows, [note])], "markdown").rstrip("\n")


BLOCKS = (reached, drift)
