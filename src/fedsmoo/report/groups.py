"""Which runs belong together: seeds of one configuration, and configurations of one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# What may differ between two runs of one line of a table: where and how often, not what.
INCIDENTAL = frozenset({"seed", "device", "engine", "chunk", "table", "exact", "target", "data", "probe", "eval_every"})


def task_of(config: dict[str, str]) -> str:
    """The task in words: what is learned, by whom."""
    partition = config.get("partition", "?")
    if "split" in config:
        partition = f"split {Path(config['split']).name}"
    elif partition == "dirichlet":
        partition += f"-{config.get('u', '?')}"
    elif partition == "pathological":
        partition += f"-{config.get('c', '?')}"
    who = f"{config.get('cohort', '?')} of {config.get('clients', '?')} clients"
    return f"{config.get('dataset', '?')}, {partition}, {config.get('model', '?')}, {who}"


def add_groups(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs with ``task``, ``group`` (the line they belong to) and ``seed`` added.

    A group is named by its method, and by the settings that tell it from other groups of the same method and task.
    """
    keys = [frozenset((k, v) for k, v in r["config"].items() if k not in INCIDENTAL) for r in runs]
    tasks = [task_of(r["config"]) for r in runs]
    siblings: dict[tuple[str, str], list[frozenset[tuple[str, str]]]] = {}
    for run, task, key in zip(runs, tasks, keys, strict=True):
        known = siblings.setdefault((task, run["method"]), [])
        if key not in known:
            known.append(key)
    out = []
    for run, task, key in zip(runs, tasks, keys, strict=True):
        others = siblings[(task, run["method"])]
        common = frozenset.intersection(*others)
        own = sorted(f"{k.removeprefix('algorithm.')}={v}" for k, v in key - common)
        label = run["method"]
        if len(others) > 1 and own:  # the one without settings of its own keeps the plain name, in every task
            label += f" ({', '.join(own[:4])})"
        out.append({**run, "task": task, "group": label, "seed": run["config"].get("seed", "0")})
    return out
