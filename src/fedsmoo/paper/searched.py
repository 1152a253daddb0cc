"""The search with one budget for each method: which settings did best on samples that nobody trains on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedsmoo.paper.cells import last_ten
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import last_mean
from fedsmoo.sweeps.bases import read
from fedsmoo.sweeps.results import Measured

BUDGET = 6  # runs of a method in a task; of fewer nothing is recommended


@dataclass(frozen=True)
class Tried:
    """One run of the search: its method, task, the settings in which runs differ, and its last ten in per cent."""

    algorithm: str
    task: str
    settings: dict[str, Any]
    validation: float
    test: float


def task_of(config: Config) -> str:
    """Return who learns what, in words.

    >>> task_of(Config(dataset="digits", partition="dirichlet-0.1", clients=100, cohort=10, rounds=800))
    'digits, dirichlet-0.1, 10 of 100 clients, 800 rounds'
    """
    people = f"{config.cohort} of {config.clients} clients"
    return f"{config.dataset}, {config.partition}, {people}, {config.rounds} rounds"


def tried(results: Iterable[Measured]) -> list[Tried]:
    """Return the runs that held samples out, by task and method, from the best on those samples down."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for run in results:
        if "validation_accuracy" in run.curve:
            groups.setdefault((task_of(run.config), run.config.algorithm), []).append(run)
    out = []
    for (task, algorithm), runs in sorted(groups.items()):
        every = [{**r.config.algorithm_options, "lr": r.config.lr, "lr_decay": r.config.lr_decay} for r in runs]
        names = dict.fromkeys(k for s in every for k in s)  # an option that a run leaves out has its default there
        varied = [k for k in names if len({str(s.get(k)) for s in every}) > 1]
        found = [
            Tried(
                algorithm,
                task,
                {k: s[k] for k in varied if k in s},
                at_the_end(run, "validation_accuracy"),
                last_ten(run),
            )
            for run, s in zip(runs, every, strict=True)
        ]
        out += sorted(found, key=worst_last)
    return out


def worst_last(run: Tried) -> float:
    """Return what sorts runs from the best on the samples held out down; one that diverged there comes last."""
    return math.inf if math.isnan(run.validation) else -run.validation


def at_the_end(run: Measured, name: str) -> float:
    """Return the mean of a curve's last ten values, in per cent; NaN if an evaluated round among them has none."""
    at = zip(run.curve[name], (r.evaluated for r in run.history), strict=True)
    return 100 * last_mean([math.nan if v is None else v for v, there in at if there])


def winners(runs: Iterable[Tried]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the best on the samples held out, by method and task, where the whole budget was spent."""
    groups: dict[tuple[str, str], list[Tried]] = {}
    for run in runs:
        groups.setdefault((run.algorithm, run.task), []).append(run)
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for (algorithm, task), found in sorted(groups.items()):
        if len(found) >= BUDGET:
            first = min(found, key=worst_last)
            numbers = {"tried": len(found), "validation": round(first.validation, 2), "test": round(first.test, 2)}
            out.setdefault(algorithm, {})[task] = {**numbers, "settings": first.settings}
    return out


def as_toml(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return winners as the text of ``paper/searched.toml``."""
    lines = ["# By benchmarks/campaign/search.py from results/search: the best of each method on samples held out."]
    for algorithm, tasks in found.items():
        for task, about in tasks.items():
            settings = ", ".join(f"{k} = {json.dumps(v)}" for k, v in about["settings"].items())
            lines += ["", f'[{algorithm}."{task}"]', f"settings = {{ {settings} }}"]
            lines += [f"{k} = {about[k]}" for k in ("tried", "validation", "test")]
    return "\n".join(lines) + "\n"


def recommended(algorithm: str) -> list[str]:
    """Return a line for each task in which a method was searched for; none where it was not."""
    out = []
    for task, about in read("searched").get(algorithm, {}).items():
        settings = ", ".join(f"{k}={v}" for k, v in about["settings"].items())
        seen = f"{about['validation']:.1f}% of the samples held out, {about['test']:.1f}% of the test set"
        out.append(f"{settings} on {task}: the best of {about['tried']} tried ({seen}, last ten, one seed)")
    return out
