"""Accuracies over rounds as the pictures of docs/results.md have them, and a picture that is written to a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsmoo.pages.figures.base import STYLE
from fedsmoo.pages.figures.draw import rendered
from fedsmoo.pages.figures.rounds import every_so_often, style
from fedsmoo.runs.results.curves import hanning
from fedsmoo.sweeps.results import Measured

WINDOW = 20  # rounds of the Hanning window, as in the other pictures


def plot(axes: Axes, run: Measured, label: str, k: int) -> None:
    """Draw a run in the k-th style: smoothed, the rounds as measured faint behind."""
    look, rounds, scores = style(k), run.curve["round"], 100 * np.array(run.scores)
    axes.plot(rounds, hanning(scores, WINDOW), label=label, markevery=every_so_often(k, len(rounds)), **look)
    axes.plot(rounds, scores, color=look["color"], alpha=0.22, linewidth=0.4, zorder=1)


def write(draw: Callable[[], Figure], about: str) -> None:
    """Write what is drawn into the file that the command line names."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with mpl.rc_context(STYLE):
        out.write_bytes(rendered(draw(), out.suffix))
