"""Fake results whose every number can be worked out by hand, and fake CIFAR images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsmoo.paper.experiments import experiment
from fedsmoo.runs.build import make_algorithm
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.results import COLUMNS, Measured, to_json

PARAMETERS, FULL = 1000, 2640


def fake_result(config, last: float, seconds: float = 0.5) -> Measured:
    """A vector has a thousand numbers; nothing that a table averages is the same in every round.

    Accuracy rises in a straight line to ``last`` (per cent) over the rounds, drift in one to 2; the first round takes
    40 times ``seconds`` longer to train, and eight seconds longer to evaluate.
    """
    rounds = config.rounds
    method = make_algorithm(config.algorithm, config.algorithm_options)
    curve = {
        "round": list(range(1, rounds + 1)),
        "test_accuracy": [last / 100 * k / rounds for k in range(1, rounds + 1)],
        "bytes_up": [config.cohort * len(method.up) * 4 * PARAMETERS] * rounds,
        "bytes_down": [config.cohort * len(method.down) * 4 * PARAMETERS] * rounds,
        "seconds_train": [41 * seconds] + [seconds] * (rounds - 1),
        "seconds_eval": [8.1] + [0.1] * (rounds - 1),
        "drift": [2 * k / rounds for k in range(1, rounds + 1)],
    }
    curve = {"round": curve["round"], **{n: curve.get(n, [1.0] * rounds) for n in COLUMNS}}
    facts = {
        "device": "a machine", "engine": "batched", "parameters": PARAMETERS, "parameters_full": FULL,
        "versions": {"torch": "9.9"}, "commit": "0123456789abcdef",
    }  # fmt: skip
    return Measured(config, curve, facts)


def write_results(folder: Path, accuracies: dict[str, float], column: str, seeds: tuple[int, ...] = (0,)) -> None:
    """Result files of some methods; a further seed ends one point higher."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in experiment("accuracy", [column], list(accuracies), seeds).cells:
        result = fake_result(cell.config, accuracies[cell.method] + cell.config.seed)
        (folder / f"{run_name(cell.config)}.json").write_text(to_json(result))


def fake_cifar(folder: Path, train: int = 600, test: int = 100) -> Path:
    """Images of CIFAR's shape that a linear model can tell apart."""
    rng = np.random.default_rng(0)
    parts = {}
    for name, count in (("train", train), ("test", test)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 60, (count, 32, 32, 3), dtype=np.uint8)
        for k, label in enumerate(labels):
            images[k, 3 * label : 3 * label + 3] += 150
        parts[f"x_{name}"], parts[f"y_{name}"] = images, labels.astype(np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "cifar10.npz", **parts)
    return folder
