"""Sizes, fonts, options and legends that all figures share, and a run's quantities as arrays."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTHS = {"column": 3.25, "page": 6.75}  # inches, as in two-column conference styles
ABREAST = {"column": 2, "page": 3}  # panels beside each other at most
LETTERS = 13  # of a title, in an inch
# Fonts of 8 points beside a text of 10; TrueType in PDF, because submission systems refuse Type 3.
STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,
    "grid.linewidth": 0.4,
    "grid.color": "#cccccc",
    "svg.hashsalt": "fedsmoo",
    "path.simplify_threshold": 0.3,  # of a pixel or point: thousands of rounds need not all be seen
}
MARKERS = "os^DvPX*"


@dataclass(frozen=True)
class Look:
    """The options of a figure."""

    width: str = "column"
    smooth: int = 1
    over: str | None = None  # sensitivity: the setting on the horizontal axis
    focus: str | None = None  # landscape: the run whose grid is laid over the others
    axis: str = "rounds"
    apart: bool = False  # landscape: side by side, not one over the others

    def figure(self, ratio: float = 0.72, **options: Any) -> Figure:
        made = Figure(figsize=(WIDTHS[self.width], ratio * WIDTHS[self.width]), layout="constrained", **options)
        FigureCanvasAgg(made)
        return made

    def rows(self, panels: int) -> tuple[int, int]:
        """Return the number of rows and of panels in each: full rows, where so many panels can have them.

        >>> [Look("page").rows(panels) for panels in (2, 4, 7, 8)]
        [(1, 2), (2, 2), (3, 3), (4, 2)]
        """
        most = min(ABREAST[self.width], panels)
        abreast = next((k for k in range(most, 1, -1) if panels % k == 0), most)
        return -(-panels // abreast), abreast

    def letters(self, abreast: int) -> int:
        """Return how many letters fit into a line of a panel's title."""
        return int(LETTERS * WIDTHS[self.width] / abreast)


def wrapped(title: str, letters: int) -> str:
    """Break a title at its commas into lines of so many letters.

    >>> wrapped("digits, dirichlet-0.1, 4 of 20 clients", 24)
    'digits, dirichlet-0.1,\\n4 of 20 clients'
    """
    parts = ", ".join(part.replace(" ", "\u00a0") for part in title.split(", "))
    return textwrap.fill(parts, letters, break_long_words=False, break_on_hyphens=False).replace("\u00a0", " ")


def column(run: dict[str, Any], key: str) -> np.ndarray:
    """Return a quantity per round; nan where it was not measured."""
    rounds = run["rounds"]
    length = rounds if isinstance(rounds, int) else len(rounds)
    values = run[key] if isinstance(run[key], list) else [run[key]] * length
    return np.array([np.nan if v is None else v for v in values], float)


def at_the_end(run: dict[str, Any]) -> float:
    """Return what leads in the last evaluated round; nan if that found no number, as of a model that diverged."""
    score = column(run, "acc")
    tested = np.isfinite(score)
    tested[run.get("none", [])] = True
    return float(score[tested][-1])


def horizontal(run: dict[str, Any], axis: str) -> np.ndarray:
    """Return the rounds, or the megabytes or seconds spent by then."""
    if axis == "bytes":
        return np.nancumsum(column(run, "up") + column(run, "down")) / 1e6
    if axis == "seconds":
        return np.nancumsum(column(run, "sec"))
    rounds = run["rounds"]
    return np.arange(1, rounds + 1) if isinstance(rounds, int) else np.array(rounds)


AXES = {"rounds": "communication rounds", "bytes": "megabytes sent", "seconds": "seconds of training"}
MANY = 1e4  # megabytes from which on they are gigabytes


def unit(runs: Sequence[dict[str, Any]], axis: str) -> tuple[float, str]:
    """Return how much of what :func:`horizontal` returns is one on an axis of some runs, and the words beside it."""
    if axis == "bytes" and max(horizontal(run, axis)[-1] for run in runs) >= MANY:
        return 1e3, "gigabytes sent"
    return 1.0, AXES[axis]


def grouped(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs by the line they belong to."""
    out: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        out.setdefault(run["group"], []).append(run)
    return out


def finish(axes: Any) -> None:
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


INSIDE = 8  # lines that a legend among the lines may name


def legend(figure: Figure, every: Sequence[Any]) -> None:
    """Draw one legend for all axes: inside them where it is small, else below, and the figure grows."""
    lines: dict[str, Any] = {}
    for axes in every:
        handles, labels = axes.get_legend_handles_labels()
        lines.update(zip(labels, handles, strict=True))
    if not lines:
        return
    width, height = (float(v) for v in figure.get_size_inches())
    wide, high = legend_size(lines, 1, width)
    if len(every) == 1 and len(lines) <= INSIDE and wide < 0.85 * width and high < 0.55 * height:
        every[0].legend(frameon=False, handlelength=2.4)
        return
    for columns in range(min(len(lines), 5), 0, -1):
        wide, high = legend_size(lines, columns, width)
        if wide <= width:
            break
    figure.set_size_inches(width, height + high)
    look: dict[str, Any] = {"ncols": columns, "frameon": False, "handlelength": 3.2}
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", **look)


def legend_size(lines: dict[str, Any], columns: int, width: float) -> tuple[float, float]:
    """Measure a legend of so many columns, in inches, in a figure of its own, which is quicker to draw."""
    scratch = Figure(figsize=(width, 1))
    FigureCanvasAgg(scratch)
    made = scratch.legend(list(lines.values()), list(lines), ncols=columns, frameon=False, handlelength=3.2)
    scratch.draw_without_rendering()
    box = made.get_window_extent()
    return box.width / scratch.dpi, box.height / scratch.dpi
