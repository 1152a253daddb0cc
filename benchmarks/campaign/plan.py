"""The plan of the paper's runs, from the TOML files and results/: what is made, what is left, and for how long.

PYTHONPATH=src python -m benchmarks.campaign.plan    # prints it; benchmarks/documents/tables.py writes it down
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedsmoo.paper.render import Table, render
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.config import Config
from fedsmoo.sweeps.bases import load_table, read_sweep
from fedsmoo.sweeps.cost import gradients_of_a_step
from fedsmoo.sweeps.grid import Sweep, expand
from fedsmoo.sweeps.results import SUPERSEDED, Measured, from_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SAMPLES = 50_000  # of CIFAR for training
PACK = 3  # runs in a batch from which on a run's share of the seconds is about the least


@dataclass(frozen=True)
class Left:
    """A file of the plan: its title, how many runs it has, and those that are not made and that no later file names."""

    name: str
    title: str
    runs: int
    left: list[Config]

    @property
    def minutes(self) -> float | None:
        found = [seconds(config) for config in self.left]
        return None if None in found else sum(s for s in found if s) / 60


def files() -> list[Path]:
    """The campaign in its order, then what is beside it."""

    def order(path: Path) -> tuple[int, str]:
        number = re.match(r"\d+", path.name)
        return (int(number[0]) if number else 4, path.name)  # those without a number were made after the fourth

    experiments = ROOT / "experiments"
    beside = [*sorted((experiments / "released").glob("*.toml")), experiments / "flgo.toml"]
    beside += [experiments / "flgo_resnet.toml", experiments / "appendix_grid.toml"]
    return [*sorted((experiments / "campaign").glob("*.toml"), key=order), *beside]


@cache
def made() -> dict[str, Measured]:
    """Every run that is below results/ and counts, by identity; FLGo's are apart."""
    places = (p for p in sorted(RESULTS.rglob("*-seed*.json")) if p.parent.name not in (SUPERSEDED, "flgo"))
    return {run.identity: run for run in map(from_json, places)}


@cache
def of_flgo() -> tuple[Measured, ...]:
    """The runs of experiments/flgo.toml and flgo_resnet.toml."""
    return tuple(map(from_json, sorted((RESULTS / "flgo").glob("*.json"))))


def steps(config: Config) -> int:
    """Local steps of a round on CIFAR."""
    held = SAMPLES / config.clients * (1 - config.holdout)
    return config.local_steps or (config.epochs or 1) * math.ceil(held / config.batch_size)


@cache
def rates() -> dict[tuple[int, int], float]:
    """Seconds of a step of ten clients of the paper's network in a batch of runs, by gradients and samples: medians."""
    found: dict[tuple[int, int], list[float]] = {}
    for run in made().values():
        c = run.config
        if run.facts.get("packed", 1) >= PACK and (c.model, c.precision) == ("resnet18_gn", "bf16"):
            spent = sum(run.curve["seconds_train"]) + sum(run.curve["seconds_eval"])
            found.setdefault((gradients(c), c.batch_size), []).append(spent / (c.rounds * steps(c)))
    return {k: statistics.median(v) for k, v in found.items()}


@cache
def of_modules() -> dict[str, float]:
    """Seconds of a step of ten clients of FLGo's two networks, alone; benchmarks/gpu/modules.py has the same layers."""
    kept = json.loads((RESULTS / "gpu" / "modules.json").read_text())
    found = {r["model"]: r["ours"] / kept["steps"] for r in kept["rows"]}
    return {"cnn": found["cnn"], "resnet18_gn_cifar": found["resnet"]}


@cache
def of_a_method(algorithm: str, options: str) -> int:
    return gradients_of_a_step(make_algorithm(algorithm, json.loads(options)).at(0))


def gradients(config: Config) -> int:
    """Gradients of a local step; numbers among a method's options do not change it, switches may."""
    switches = {k: v for k, v in config.algorithm_options.items() if isinstance(v, bool)}
    return of_a_method(config.algorithm, json.dumps(switches))


def seconds(config: Config) -> float | None:
    """What a run should take as one of a batch on an H200; None: its network was not measured."""
    count = gradients(config)
    known = {name: count * each for name, each in of_modules().items()}
    rate = rates().get((count, config.batch_size)) if config.model == "resnet18_gn" else known.get(config.model)
    return None if rate is None else config.rounds * steps(config) * rate * config.cohort / 10


def grid(path: Path) -> Sweep:
    """A file's runs; where it names a split file, which the repository has not, as if clients drew their samples."""
    table = load_table(path)
    if "split" not in table:
        return read_sweep(path)
    return expand({**{k: v for k, v in table.items() if k != "split"}, "clients": 100}, str(path))


def read() -> Iterator[Left]:
    """Every file of the plan; a run that several of them name is left in one."""
    before = Path.cwd()
    os.chdir(ROOT)  # methods of files are named from there
    try:
        sweeps = {path: grid(path) for path in files()}
        names = {path: [cell.identity for cell in sweep.cells] for path, sweep in sweeps.items()}
    finally:
        os.chdir(before)
    worth = sorted(sweeps, key=lambda path: path.parent.name == "campaign")  # what is beside the campaign first
    last = {name: path for path in worth for name in names[path]}
    # A split is part of a run's identity; FLGo's runs are known by what else they have.
    own = {(run.config.algorithm, run.config.model, run.config.seed) for run in of_flgo()}
    for path, sweep in sweeps.items():
        left = []
        for name, config in zip(names[path], (cell.config for cell in sweep.cells), strict=True):
            flgo = path.stem.startswith("flgo") and (config.algorithm, config.model, config.seed) in own
            if name not in made() and not flgo and last[name] == path:
                left.append(config)
        title = f"`{path.relative_to(ROOT / 'experiments').with_suffix('')}`"
        yield Left(title, sweep.title, len(sweep.cells), left)


@cache
def plan() -> tuple[Left, ...]:
    return tuple(read())


def campaign() -> str:
    """The table: one row for all that is whole, then a row for each file with something left, then the sum."""
    left = [f for f in plan() if f.left]
    rows = [[f"{len(plan()) - len(left)} files", "made, or named again below", "", "0", ""]]
    rows += [[f.name, shortened(f.title), str(f.runs), str(len(f.left)), said(f.minutes)] for f in left]
    total = sum(f.minutes or 0 for f in left)
    many = f"{len(made()) + len(of_flgo())} runs made"
    rows.append(["all", many, "", str(sum(len(f.left) for f in left)), said(total)])
    notes = [
        "A run that several files name is left in one of them. Minutes of an H200 that has nothing else to do, in "
        "batches of runs, from the median seconds of a step of those that are made "
        f"({1000 * rates()[1, 50]:.1f} ms with one gradient, {1000 * rates()[2, 50]:.1f} ms with two, in batches of 50 "
        "samples); of FLGo-Bench's networks, each alone and without evaluation."
    ]
    header = ["file of `experiments/`", "what", "runs", "left", "GPU minutes"]
    return render([Table("What is left of the plan", header, rows, notes)], "markdown")


def shortened(title: str) -> str:
    return re.sub(r"^Campaign \d+[a-z]?: ", "", title)


def said(minutes: float | None) -> str:
    return "-" if minutes is None else f"{minutes:.0f}"


def minutes_of(*names: str) -> float:
    """The minutes that are left of some files, by the beginnings of their names."""
    return sum(f.minutes or 0 for f in plan() if any(f.name.startswith(f"`{name}") for name in names))


def main() -> None:
    print(campaign())


if __name__ == "__main__":
    main()
