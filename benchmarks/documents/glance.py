"""The README's two tables: what a round takes, and what the paper's methods come to, for readers with a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsmoo.paper.cells import best, last_ten, spread
from fedsmoo.paper.experiments import experiment, published
from fedsmoo.sweeps.results import Measured, collect

RESULTS = Path(__file__).parents[2] / "results"
COLUMN, SEEDS = "10%-of-100 cifar10.dirichlet-0.1", (0, 1, 2)


def rows_of(file: str) -> dict[str, Any]:
    """Seconds of a round by method, of a file of benchmarks on a GPU."""
    found = json.loads((RESULTS / "gpu" / file).read_text())
    entries = found if isinstance(found, list) else found["results"]
    return {e["algorithm"]: e["seconds_per_round"] for e in entries}


def speed() -> str:
    """A round of ours in two precisions beside one of the authors' code."""
    fast, alike, theirs = (rows_of(f) for f in ("round.json", "round_tf32.json", "authors.json"))
    lines = ["| a round of | authors' code | `fedsmoo`, tf32 | `fedsmoo`, bf16 |", "|---|---:|---:|---:|"]
    for name, label in (("fedavg", "FedAvg"), ("fedsmoo", "FedSMOO")):
        ours = [f"{s:.3f} s, **{theirs[name] / s:.0f}x** faster" for s in (alike[name], fast[name])]
        lines.append(f"| {label} | {theirs[name]:.1f} s | {' | '.join(ours)} |")
    return "\n".join(lines)


def accuracy() -> str:
    """The paper's eight methods in one column of its table: ours beside what it prints."""
    measured, found = collect([], RESULTS), dict[str, list[Measured]]()
    for cell in experiment("accuracy", (COLUMN,), seeds=SEEDS).cells:
        if cell.identity in measured:
            found.setdefault(cell.method, []).append(measured[cell.identity])
    who, _, task = COLUMN.partition(" ")
    printed = published()["accuracy"][who]
    at = printed["columns"].index(task)
    lines = ["| method | seeds | last ten rounds | best round | best round in the paper |", "|---|---:|---:|---:|---:|"]
    for method, runs in found.items():
        ours = [spread([measure(run) for run in runs]) for measure in (last_ten, best)]
        lines.append(f"| {method} | {len(runs)} | {' | '.join(ours)} | {printed[method][at]:.2f} |")
    return "\n".join(lines)
