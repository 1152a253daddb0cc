"""The pictures of CIFAR's splits in docs/results.md: who holds which class, and class totals.

How many samples of each class a client holds follows from the labels alone, whatever their order: 500 of each of 100
classes, or 5,000 of each of 10. So these need no data, and those of CIFAR-100 are what ``fedsmoo data show`` draws.

PYTHONPATH=src python -m benchmarks.figures.splits docs/figures
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

import numpy as np

from fedsmoo.data.division.partition import from_rule
from fedsmoo.pages.figures.partition import class_totals, counts, heat_map

CLASSES = {"cifar10": 10, "cifar100": 100}
TRAIN, CLIENTS, SEED = 50_000, 100, 0
# Those of the paper's tables, and Pathological 30, which its appendix shows.
MAPS = {"dirichlet": (0.6, 0.1), "pathological": (30, 20, 10)}
MOST_UNEVEN = 0.1  # of the paper's pictures of class totals
OPTION = {"dirichlet": "u", "pathological": "c"}


def labels(dataset: str) -> np.ndarray:
    """Those of the training part, in the order of the classes."""
    return np.repeat(np.arange(CLASSES[dataset]), TRAIN // CLASSES[dataset])


@cache
def split(dataset: str, name: str, value: float, replacement: bool = True) -> list[np.ndarray]:
    """What each of 100 clients holds."""
    rule = from_rule({"name": name, OPTION[name]: value, "replacement": replacement})
    return rule.split(labels(dataset), CLASSES[dataset], CLIENTS, SEED)


def held(dataset: str, name: str, value: float, replacement: bool = True) -> np.ndarray:
    """How many samples of each class each client holds ``[clients, classes]``."""
    return counts(split(dataset, name, value, replacement), labels(dataset), CLASSES[dataset])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, values in MAPS.items():
        for value in values:
            title = f"cifar100, {name}-{value:g}, {CLIENTS} clients, with replacement"
            path = folder / f"split_cifar100_{name}-{value:g}.png"
            heat_map(path, split("cifar100", name, value), labels("cifar100"), CLASSES["cifar100"], None, title)
    for dataset, classes in CLASSES.items():
        title = f"{dataset}, dirichlet-{MOST_UNEVEN:g}, {CLIENTS} clients"
        both = {
            f"{word} replacement": split(dataset, "dirichlet", MOST_UNEVEN, word == "with")
            for word in ("with", "without")
        }
        class_totals(folder / f"totals_{dataset}.png", both, labels(dataset), classes, None, title)


if __name__ == "__main__":
    main()
