"""Run folders as a run would leave them, with curves in closed form so that tests know what must be shown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

TOP = {"fedavg": 0.80, "fedsam": 0.82, "fedsmoo": 0.90}


def accuracy(algorithm: str, seed: int, t: int, rounds: int) -> float:
    """Rises to the method's top plus a hundredth per seed."""
    return (TOP.get(algorithm, 0.7) + 0.01 * seed) * (1 - math.exp(-6 * t / rounds))


def record(algorithm: str, seed: int, t: int, rounds: int) -> dict[str, Any]:
    return {
        "round": t,
        "test_accuracy": accuracy(algorithm, seed, t, rounds),
        "test_loss": 0.3 + 2 * math.exp(-5 * t / rounds),
        "train_loss": 0.1 + 2 * math.exp(-6 * t / rounds),
        "drift": 1 / (1 + t),
        "lr": 0.1,
        "cohort": [1, 2, 3, 4],
        "bytes_up": 1_000_000,
        "bytes_down": 2_000_000,
        "seconds_train": 0.05,
        "seconds_eval": 0.01,
        "probes": {"sharpness": 0.5 / t} if t % 5 == 0 else {},
    }


def surface(steepness: float, points: int = 9) -> dict[str, Any]:
    grid = [-1 + 2 * i / (points - 1) for i in range(points)]
    loss = [[0.2 + steepness * (a * a + b * b / 2) for b in grid] for a in grid]
    return {"a": grid, "b": grid, "loss": loss, "accuracy": [[0.9 - v / 10 for v in r] for r in loss], "samples": 360}


def measurements(steepness: float) -> dict[str, Any]:
    return {
        "landscape": {**surface(steepness), "part": "test"},
        "hessian": {
            "eigenvalues": [100 * steepness, 50 * steepness],
            "trace": 2000 * steepness,
            "trace_error": 30.0,
            "samples": 1438,
            "part": "train",
            "density": {"grid": list(range(-5, 50)), "values": [math.exp(-abs(x) / 10) for x in range(-5, 50)]},
        },
        "sharpness": {"sharpness": 0.1 * steepness, "average": 0.01 * steepness},
        "bound": {"log10_capacity": 8 + steepness, "margin_error": 0.1},
        "fairness": {
            "classes": [0.8 + 0.01 * k for k in range(10)],
            "clients": [0.7 + 0.01 * k for k in range(20)],
            "mean": 0.795,
            "worst_tenth": 0.705,
            "best_tenth": 0.885,
            "deviation": 0.058,
            "class_names": [str(k) for k in range(10)],
        },
        "line": {"t": [0.0, 0.5, 1.0], "loss": [0.2, 0.9, 0.3], "accuracy": [0.9, 0.5, 0.8], "models": ["one", "two"]},
    }


def run_folder(
    root: Path,
    name: str,
    algorithm: str,
    seed: int = 0,
    rounds: int = 60,
    finished: bool = True,
    analysis: dict[str, Any] | None = None,
    command: str | None = None,
    **settings: Any,
) -> Path:
    """One run folder; further settings go into its config."""
    folder = root / name
    folder.mkdir(parents=True)
    config = {
        "rounds": rounds,
        "cohort": 4,
        "seed": seed,
        "algorithm": algorithm,
        "model": "mlp",
        "dataset": "digits",
        "partition": "dirichlet",
        "u": 0.1,
        "clients": 20,
        **settings,
    }
    (folder / "config.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()))
    lines = [json.dumps(record(algorithm, seed, t, rounds)) for t in range(1, rounds + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        command = command or f"fedsmoo run --algorithm {algorithm} --seed {seed}"
        (folder / "summary.json").write_text(json.dumps({"command": command, "engine": "batched", "parameters": 9034}))
    for kind, value in (analysis or {}).items():
        (folder / "analysis").mkdir(exist_ok=True)
        (folder / "analysis" / f"{kind}.json").write_text(json.dumps(value))
    return folder
