"""The picture of FedSMOO's sensitivity in docs/results.md: accuracy over rounds, a panel for each of its settings.

PYTHONPATH=src python -m benchmarks.figures.sensitivity docs/figures/sensitivity.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.documents.facts import runs
from fedsmoo.pages.figures.base import STYLE, Look, finish
from fedsmoo.pages.figures.draw import rendered
from fedsmoo.pages.figures.rounds import every_so_often, style
from fedsmoo.runs.results.curves import hanning
from fedsmoo.sweeps.bases import description
from fedsmoo.sweeps.results import Measured

WINDOW = 20  # rounds of the Hanning window, as in the other pictures
OURS, OTHERS = 7, (0, 1, 2)  # styles: FedSMOO's own for the paper's settings
TITLES = {"local epochs": "local epochs", "beta": "beta", "r": "radius r", "lr decay": "decay of the learning rate"}


def panels() -> dict[str, dict[str, Measured]]:
    """The runs that were measured, by setting and by its value."""
    out: dict[str, dict[str, Measured]] = {}
    for row in description("sensitivity")["columns"]:
        setting, _, value = row.rpartition(" ")
        found = runs("sensitivity", row).get("FedSMOO", {})
        if found:
            out.setdefault(setting, {})[value] = found[0]
    return out


def draw() -> Figure:
    """Smoothed accuracies, the rounds as measured faint behind; the paper's settings are one line in every panel."""
    figure = Look("page").figure(ratio=0.72)
    places = figure.subplots(2, 2, sharex=True, sharey=True)
    every = panels()
    (usual,) = set.intersection(*({run.identity for run in found.values()} for found in every.values()))
    for axes, (setting, found) in zip(places.ravel(), every.items(), strict=True):
        free = iter(OTHERS)
        for value, run in found.items():
            k = OURS if run.identity == usual else next(free)
            look: dict[str, Any] = style(k)
            rounds, scores = run.curve["round"], 100 * np.array(run.scores)
            label = f"{value}, the paper's" if k == OURS else value
            axes.plot(rounds, hanning(scores, WINDOW), label=label, markevery=every_so_often(k, len(rounds)), **look)
            axes.plot(rounds, scores, color=look["color"], alpha=0.22, linewidth=0.4, zorder=1)
        axes.set(title=TITLES[setting])
        axes.legend(frameon=False, handlelength=3.2, loc="lower right")
        finish(axes)
    for axes in places[:, 0]:
        axes.set(ylabel="test accuracy (%)")
    for axes in places[-1]:
        axes.set(xlabel="communication rounds")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with mpl.rc_context(STYLE):
        out.write_bytes(rendered(draw(), out.suffix))


if __name__ == "__main__":
    main()
