"""FLGo-Bench beside ours: what it prints, what experiments/flgo.toml and flgo_resnet.toml gave, and whether they agree.

PYTHONPATH=src python -m benchmarks.campaign.outside    # prints it; benchmarks/documents/tables.py writes it down
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.campaign.plan import of_flgo
from fedsmoo.metrics.average import mean
from fedsmoo.paper.cells import spread, validated
from fedsmoo.paper.render import Table, render
from fedsmoo.sweeps.results import Measured


@dataclass(frozen=True)
class Printed:
    """A row of its table: the mean over five seeds and their standard deviation, in per cent."""

    model: str
    algorithm: str
    mean: float
    deviation: float


ROWS = {
    "CNN, FedAvg": Printed("cnn", "fedavg", 69.87, 0.50),
    "CNN, SCAFFOLD": Printed("cnn", "scaffold", 65.06, 0.51),
    "CNN, FedDyn": Printed("cnn", "feddyn", 70.82, 0.50),
    "ResNet-18-GN, FedAvg": Printed("resnet18_gn_cifar", "fedavg", 66.39, 1.66),
}


def ours(row: Printed, runs: tuple[Measured, ...]) -> list[float]:
    """Our accuracies in the round that is best on samples held out, one a seed."""
    mine = (r for r in runs if (r.config.model, r.config.algorithm) == (row.model, row.algorithm))
    return [found for run in mine if (found := validated(run)) is not None]


def verdict(row: Printed, found: list[float]) -> str:
    """Whether the mean of ours is within two of its standard deviations.

    >>> verdict(ROWS["CNN, FedAvg"], [70.8]), verdict(ROWS["CNN, FedAvg"], [71.0])
    ('within two deviations', '+1.13')
    """
    if not found:
        return "not measured"
    gap = mean(found) - row.mean
    return "within two deviations" if abs(gap) <= 2 * row.deviation else f"{gap:+.2f}"


def outside(runs: tuple[Measured, ...] | None = None) -> str:
    rows = []
    for name, row in ROWS.items():
        found = ours(row, of_flgo() if runs is None else runs)
        printed = f"{row.mean:.2f} ± {row.deviation:.2f}"
        rows.append([name, printed, str(len(found)) if found else "", spread(found), verdict(row, found)])
    note = "Test accuracy (%) in the round that is best on samples held out; ± is the standard deviation over seeds."
    header = ["row", "FLGo-Bench, five seeds", "n", "ours", ""]
    return render([Table("FLGo-Bench: CIFAR-10, Dirichlet 0.1, 20% of 100 clients", header, rows, [note])], "markdown")


if __name__ == "__main__":
    print(outside())
