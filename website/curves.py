"""The page of curves: every measured run of the paper's table 1, reduced to what a screen can show."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from heatmap import heat_map
from links import ROOT

from fedsmoo.paper.cells import Grid, last_ten
from fedsmoo.paper.experiments import experiment
from fedsmoo.runs.results.curves import COLOURS
from fedsmoo.sweeps.results import Measured, collect

POINTS = 100  # of a curve
SEEDS = (0, 1, 2)


def mean_of_windows(values: Sequence[float], points: int = POINTS) -> list[float]:
    """Return the means of so many windows of a curve, of equal lengths but for the last.

    >>> mean_of_windows([1, 3, 5, 7, 9], 2)
    [3, 8]
    """
    length = -(-len(values) // points)
    return [statistics.fmean(values[at : at + length]) for at in range(0, len(values), length)]


def curve(runs: Sequence[Measured]) -> dict[str, object]:
    """Return the curve of a method: the mean over its seeds, with what a round took and sent."""
    first = runs[0]
    rounds = len(first.history)
    accuracy = [statistics.fmean(at) for at in zip(*(mean_of_windows(run.scores) for run in runs), strict=True)]
    sent = sum(r.bytes_up + r.bytes_down for r in first.history) / rounds
    return {
        "n": len(runs),
        "rounds": rounds,
        "end": round(statistics.fmean(last_ten(run) for run in runs), 2),
        "mb": round(sent / 1e6, 1),
        "s": round(statistics.median(r.seconds_train for r in first.history), 4),
        "y": [round(100 * a, 1) for a in accuracy],
    }


@cache
def measured(results: Path = ROOT / "results") -> Grid:
    """Return table 1 with all that was measured of it."""
    return Grid(experiment("accuracy", seeds=SEEDS), collect([], results))


def curves(grid: Grid) -> dict[str, dict[str, dict[str, object]]]:
    """Return the curves of all measured columns of table 1, by column and method."""
    found = {c: {m: curve(runs) for m in grid.methods if (runs := grid[m, c])} for c in grid.columns}
    return {column: methods for column, methods in found.items() if methods}


def curves_script() -> str:
    """Return the data as a script: a page that was opened from a folder may read no other files."""
    data = {"colours": COLOURS, "columns": curves(measured())}
    return f"window.fedsmooCurves = {json.dumps(data, separators=(',', ':'))};\n"


def curves_page() -> str:
    """Return the page."""
    return PAGE.replace("HEAT MAP", heat_map(measured()))


PAGE = """---
hide: [toc]
---

# Curves, and table 1 at a glance

Test accuracy of the paper's eight methods on CIFAR-10 and CIFAR-100, as measured: ResNet-18 with GroupNorm, 800 rounds
on one H200, products in bf16. A curve is the mean over seeds, and each of its points the mean of eight rounds. Choose a
task, point at a curve to read it, click a method to hide it.

<div class="curves" data-curves><noscript>The curves need JavaScript; the numbers are on the page
<a href="results.html">Every number</a>.</noscript></div>

Seconds are those of training on that machine, several runs in one batch; what is sent counts both directions. The
numbers behind the curves: [every number](results.md). To draw your own runs: [looking at runs](report.md).

## Table 1 at a glance

The rank of each method in each column of the paper's table 1 (1 is best), and below it how far our best round is from
the paper's, in points: blue where ours is above, red where it is below. Click a row to see its curves.

HEAT MAP

<script src="assets/fedsmoo/curves-data.js"></script>
<script src="assets/fedsmoo/curves.js"></script>
"""
