"""The picture of the authors' README in docs/results.md: accuracy over rounds with its settings, and what it prints.

PYTHONPATH=src python -m benchmarks.figures.readme_curves docs/figures/readme_others.svg
"""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.documents import facts
from benchmarks.figures.curves import plot, write
from fedsmoo.pages.figures.base import Look, finish
from fedsmoo.sweeps.results import Measured

COLUMN, ROUNDS = "10%-of-100 cifar10.dirichlet-0.1", 1000
PRINTED = {"FedSpeed": 82.26, "FedGamma": 80.72, "MoFedSAM": 81.58}  # revision f1d0607 of FL-Simulator


def panels() -> dict[str, dict[str, Measured]]:
    """The runs with the README's settings, by method and by what tells them apart, and one with the paper's radius."""

    def released(method: str, **options: object) -> Measured:
        return facts.released(COLUMN, ROUNDS, method, **options)

    return {
        "FedSpeed": {
            "as released": released("fedspeed", form="released"),
            "by its box": released("fedspeed", form="paper"),
        },
        "FedGamma": {"by its box": released("fedgamma")},
        "MoFedSAM": {
            "radius 0.1": released("mofedsam", rho=0.1, alpha=0.1),
            "radius 0.01, 800 rounds": facts.runs("accuracy", COLUMN)["MoFedSAM"][0],
        },
    }


def draw() -> Figure:
    """Smoothed accuracies, the rounds as measured faint behind; what is printed is a level."""
    figure = Look("page").figure(ratio=0.42)
    places = figure.subplots(1, len(PRINTED), sharex=True, sharey=True)
    for axes, (method, found) in zip(places, panels().items(), strict=True):
        axes.axhline(PRINTED[method], color="0.35", linestyle=":", linewidth=1, label=f"printed: {PRINTED[method]}")
        for k, (label, run) in enumerate(found.items()):
            plot(axes, run, label, k)
        axes.set(title=method, xlabel="communication rounds")
        axes.legend(frameon=False, handlelength=3.2, loc="upper center", bbox_to_anchor=(0.5, -0.24))
        finish(axes)
    places[0].set(ylabel="test accuracy (%)")
    return figure


if __name__ == "__main__":
    write(draw, __doc__)
