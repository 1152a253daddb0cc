"""What every figure shares: sizes, fonts, what may be asked for, and a run's quantities as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTHS = {"column": 3.25, "page": 6.75}  # inches, as in two-column conference styles
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
    """What a figure may be asked for."""

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


def column(run: dict[str, Any], key: str) -> np.ndarray:
    """A quantity per round; nan where it was not measured."""
    rounds = run["rounds"]
    length = rounds if isinstance(rounds, int) else len(rounds)
    values = run[key] if isinstance(run[key], list) else [run[key]] * length
    return np.array([np.nan if v is None else v for v in values], float)


def horizontal(run: dict[str, Any], axis: str) -> np.ndarray:
    """Rounds, or megabytes or seconds spent by then."""
    if axis == "bytes":
        return np.nancumsum(column(run, "up") + column(run, "down")) / 1e6
    if axis == "seconds":
        return np.nancumsum(column(run, "sec"))
    rounds = run["rounds"]
    return np.arange(1, rounds + 1) if isinstance(rounds, int) else np.array(rounds)


AXES = {"rounds": "communication rounds", "bytes": "megabytes sent", "seconds": "seconds of training"}


def grouped(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs by the line they belong to."""
    out: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        out.setdefault(run["group"], []).append(run)
    return out


def finish(axes: Any, legend: bool = True) -> None:
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and len(axes.get_legend_handles_labels()[0]) > 0:
        axes.legend(frameon=False, handlelength=2.4)
