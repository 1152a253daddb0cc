"""Curves of several methods over the rounds, as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import brief, unknown
from fedsmoo.metrics.quantity import quantity
from fedsmoo.runs.config import free_within
from fedsmoo.runs.record import Record, lead_of

# Colours that stay apart for colour-blind readers, and line styles that stay apart in black and white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))


def hanning(values: np.ndarray, window: int) -> np.ndarray:
    """Smooth a curve by a Hanning window, centred on each round, its ends held by repeating the end values.

    A window of an even number of rounds reaches as far to the left as to the right: no curve is shifted.

    >>> hanning(np.ones(5), 3)
    array([1., 1., 1., 1., 1.])
    """
    if window < 3 or not len(values):
        return values
    reach = window // 2
    kernel = 0.5 + 0.5 * np.cos(2 * np.pi * np.arange(-reach, reach + 1) / (window + 1))
    padded = np.pad(values, reach, mode="edge")
    return np.convolve(padded, kernel / kernel.sum(), mode="valid")


def window_of(rounds: Sequence[int], smooth: int) -> int:
    """Return a window of so many rounds in points: of a curve with a point every tenth round, a tenth as many.

    >>> window_of([1, 2, 3], 20), window_of([10, 20, 30], 20)
    (20, 2)
    """
    return round(smooth * (len(rounds) - 1) / (rounds[-1] - rounds[0])) if len(rounds) > 1 else smooth


def accuracy_curves(
    runs: Mapping[str, Sequence[Sequence[Record]]], path: Path, title: str = "", smooth: int = 1
) -> None:
    """Draw the leading metric over rounds into a file: the mean over seeds, with the range of the seeds shaded."""
    figure = Figure(figsize=(6.4, 4.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    draw_curves(axes, runs, smooth=smooth)
    axes.set_title(title, fontsize=10)
    figure.savefig(path)


def draw_curves(
    axes: Axes, runs: Mapping[str, Sequence[Sequence[Record]]], metric: str | None = None, smooth: int = 1
) -> None:
    """Draw a number of the records over rounds: the mean over seeds, with the range of the seeds shaded.

    ``metric`` is one of :meth:`Record.numbers`; ``None``: the metric that leads.
    """
    lead = lead_of(itertools.chain.from_iterable(h for histories in runs.values() for h in histories))
    percent = lead.percent if metric is None else metric.endswith("accuracy") or quantity(metric).percent
    scale = 100 if percent else 1
    for k, (method, histories) in enumerate(runs.items()):
        values = [{r.round: r.score if metric is None else r.numbers().get(metric) for r in h} for h in histories]
        points = [{n: v for n, v in each.items() if v is not None} for each in values]
        rounds = [number for number in points[0] if all(number in p for p in points)]  # in which all were measured
        window = window_of(rounds, smooth)
        curves = np.array([hanning(np.array([scale * p[n] for n in rounds], float), window) for p in points])
        colour = COLOURS[k % len(COLOURS)]
        axes.plot(rounds, curves.mean(0), label=method, color=colour, linestyle=STYLES[k % len(STYLES)], linewidth=1.4)
        if len(curves) > 1:
            axes.fill_between(rounds, curves.min(0), curves.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("communication rounds")
    if isinstance(axes.xaxis.get_major_locator(), MaxNLocator):  # not where somebody's own axes have other ticks
        axes.locator_params("x", integer=True, min_n_ticks=1)  # there is no half a round
    words = None if metric is None else f"{metric.replace('_', ' ')}{' (%)' if percent else ''}"
    axes.set_ylabel(words or lead.axis)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)


def plot(results: Any, metric: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a number of the rounds of one or several results; returns the matplotlib axes.

    Args:
        results: a result, a comparison, several results (those of one method and the same settings are its seeds: their
            mean is drawn, with their range shaded), or a mapping from labels to results or lists of them.
        metric: any number of a record, such as ``"train_loss"``, or that a callback logged or a probe measured
            (default: the metric that leads).
        ax: axes to draw on (default: of a new figure).
    """
    runs = histories_of(results)
    each = [measured_numbers(h) for seeds in runs.values() for h in seeds]
    if metric is not None and any(metric not in names for names in each):
        raise unknown("number of these rounds", metric, sorted(set[str]().union(*each)))
    if ax is None:
        from matplotlib import pyplot  # late: it chooses a screen

        ax = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")[1]
    draw_curves(ax, runs, metric)
    return ax


def measured_numbers(history: Sequence[Record]) -> set[str]:
    """Return the names of the numbers that were measured in some round."""
    return {name for record in history for name, value in record.numbers().items() if value is not None}


def distinct_labels(results: Sequence[Any]) -> list[str]:
    """Name results by their methods, and by the settings in which those of one method differ: these are no seeds."""
    free = free_within("line")
    settings = [{**c.to_dict(), **c.options()} if (c := getattr(r, "config", None)) else {} for r in results]
    plain = [{n: v for n, v in s.items() if n not in free and not n.endswith("_options")} for s in settings]
    names = []
    for result, mine in zip(results, plain, strict=True):
        alike = [p for r, p in zip(results, plain, strict=True) if r.label == result.label]
        differ = [n for n in dict.fromkeys(n for p in alike for n in p) if len({str(p.get(n)) for p in alike}) > 1]
        names.append(" ".join([result.label, *(f"{n}={mine[n]}" for n in differ if n in mine)]))
    return names


def histories_of(results: Any) -> dict[str, list[list[Record]]]:
    """Return histories by label, of whatever holds some."""
    if hasattr(results, "histories"):  # a comparison
        return {label: list(seeds.values()) for label, seeds in results.histories.items()}
    if isinstance(results, Mapping):
        return {str(k): [h for mine in histories_of(v).values() for h in mine] for k, v in results.items()}
    out: dict[str, list[list[Record]]] = {}
    several = results if isinstance(results, Sequence) else [results]
    for each in several:
        if not hasattr(each, "history"):
            raise FedsmooError(
                f"there is no curve in {brief(each)}: give a Result, several, or a mapping of labels to some"
            )
    for each, name in zip(several, distinct_labels(several), strict=True):
        out.setdefault(name, []).append(list(each.history))
    if not out or not all(h for seeds in out.values() for h in seeds):
        raise FedsmooError("there is no round to draw: run some first")
    return out
