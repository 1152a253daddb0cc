"""How methods stand: their rank in each column of table 1, and how far from the paper they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedsmoo.metrics.average import mean
from fedsmoo.paper.cells import Grid, best, last_ten
from fedsmoo.paper.experiments import experiment, paper_accuracy
from fedsmoo.paper.render import Table
from fedsmoo.sweeps.paired import ranks
from fedsmoo.sweeps.results import Measured

WHAT = "rank, and best on test less the paper's"
HOW = (
    "Rank by the mean of the last ten, over the seeds that all measured methods of the column have; in brackets "
    "the best on test less the paper's, in points, over all seeds. n counts the seeds of its methods."
)


@dataclass(frozen=True)
class Standing:
    """A method in a column: over how many seeds, its rank (1 is best), and its distance to the paper in points."""

    seeds: int
    rank: int | None  # None: its seeds and those of others have none in common
    gap: float | None  # None: the paper prints nothing

    def __str__(self) -> str:
        """Return it as a cell of text.

        >>> str(Standing(1, 3, -0.04)), str(Standing(3, 1, None))
        ('3 (-0.0)', '1')
        """
        rank = "?" if self.rank is None else str(self.rank)
        return rank if self.gap is None else f"{rank} ({self.gap:+.1f})"


def table_one(found: Mapping[str, Measured]) -> Grid | None:
    """Return table 1 with what some runs, by identity, measured of it, over all of their seeds; none if nothing."""
    seeds = sorted({run.config.seed for run in found.values()})
    grid = Grid(experiment("accuracy", seeds=seeds), dict(found)) if seeds else None
    return grid if grid is not None and any(grid.runs.values()) else None


def standings(grid: Grid) -> dict[tuple[str, str], Standing]:
    """Return how each method stands in each column that it was measured in."""
    out = {}
    for column in grid.columns:
        rank = ranks({m: grid.by_seed((m, column), last_ten) for m in grid.methods})
        for method in grid.methods:
            if runs := grid[method, column]:
                printed, _ = paper_accuracy(column, method)
                gap = None if printed is None else mean(map(best, runs)) - printed
                out[method, column] = Standing(len(runs), rank.get(method), gap)
    return out


def summary(grid: Grid, title: str) -> Table:
    """Make the table of all standings: a row for each column of the paper's, so that it fits on a screen."""
    found = standings(grid)
    rows = []
    for column in grid.columns:
        seeds = sorted({found[m, column].seeds for m in grid.methods if (m, column) in found})
        counts = "-".join(str(n) for n in (seeds if len(seeds) < 2 else [seeds[0], seeds[-1]]))
        rows.append([column, counts, *(str(found.get((m, column), "")) for m in grid.methods)])
    return Table(f"{title}: {WHAT}", ["column", "n", *grid.methods], rows, [HOW])
