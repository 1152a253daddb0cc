"""The picture of FedSMOO's sensitivity in docs/results.md: accuracy over rounds, a panel for each of its settings.

PYTHONPATH=src python -m benchmarks.figures.sensitivity docs/figures/sensitivity.svg
"""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.documents.facts import runs
from benchmarks.figures.curves import plot, write
from fedsmoo.pages.figures.base import Look, finish
from fedsmoo.sweeps.bases import description
from fedsmoo.sweeps.results import Measured

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
            plot(axes, run, f"{value}, the paper's" if k == OURS else value, k)
        axes.set(title=TITLES[setting])
        axes.legend(frameon=False, handlelength=3.2, loc="lower right")
        finish(axes)
    for axes in places[:, 0]:
        axes.set(ylabel="test accuracy (%)")
    for axes in places[-1]:
        axes.set(xlabel="communication rounds")
    return figure


if __name__ == "__main__":
    write(draw, __doc__)
