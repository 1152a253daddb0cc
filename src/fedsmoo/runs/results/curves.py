"""Accuracy curves of several methods, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedsmoo.runs.record import Record

# Colours that stay apart for colour-blind readers, and line styles that stay apart in black and white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))


def hanning(values: np.ndarray, window: int) -> np.ndarray:
    """Smooth a curve by a Hanning window, centred on each round, its ends held by repeating the end values.

    A window of an even number of rounds reaches as far to the left as to the right: no curve is shifted.

    >>> hanning(np.ones(5), 3)
    array([1., 1., 1., 1., 1.])
    """
    if window < 3:
        return values
    reach = window // 2
    kernel = 0.5 + 0.5 * np.cos(2 * np.pi * np.arange(-reach, reach + 1) / (window + 1))
    padded = np.pad(values, reach, mode="edge")
    return np.convolve(padded, kernel / kernel.sum(), mode="valid")


def accuracy_curves(
    runs: Mapping[str, Sequence[Sequence[Record]]], path: Path, title: str = "", smooth: int = 1
) -> None:
    """Draw test accuracy over rounds into a file: the mean over seeds, with the range of the seeds shaded."""
    figure = Figure(figsize=(6.4, 4.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for k, (method, histories) in enumerate(runs.items()):
        length = min(sum(r.test_accuracy is not None for r in h) for h in histories)
        tested = [[r for r in h if r.test_accuracy is not None][:length] for h in histories]
        rounds = [r.round for r in tested[0]]
        curves = np.array([hanning(np.array([100 * (r.test_accuracy or 0) for r in h]), smooth) for h in tested])
        colour = COLOURS[k % len(COLOURS)]
        axes.plot(rounds, curves.mean(0), label=method, color=colour, linestyle=STYLES[k % len(STYLES)], linewidth=1.4)
        if len(curves) > 1:
            axes.fill_between(rounds, curves.min(0), curves.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("communication rounds")
    axes.set_ylabel("test accuracy (%)")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path)
