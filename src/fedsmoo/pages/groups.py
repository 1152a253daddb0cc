"""Group runs: seeds of one configuration into a line, configurations of one task into a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.runs.config import free_within

# What may differ between two runs of one line of a table: where and how often, not what.
INCIDENTAL = frozenset(free_within("line"))
Settings = frozenset[tuple[str, str]]  # of a run, names and values, but for what is incidental


def task_of(config: dict[str, str]) -> str:
    """Return the task in words: data set, partition, model and clients."""
    partition = config.get("partition", "?")
    if "split" in config:
        partition = f"split {Path(config['split']).name}"
    elif partition == "dirichlet":
        partition += f"-{config.get('u', '?')}"
    elif partition == "pathological":
        partition += f"-{config.get('c', '?')}"
    who = f"{config.get('cohort', '?')} of {config.get('clients', '?')} clients"
    return f"{config.get('dataset', '?')}, {partition}, {config.get('model', '?')}, {who}"


def switches(method: str) -> dict[str, str]:
    """Return the defaults of a built-in method's switches: options that are on or off, or one of several words."""
    known = next((m for m in ALGORITHMS.values() if m.__name__ == method), None)
    options = fields(known) if known else ()
    return {f"algorithm.{f.name}": str(f.default) for f in options if isinstance(f.default, bool | str)}


def add_groups(runs: list[dict[str, Any]], over: str | None = None) -> list[dict[str, Any]]:
    """Return the runs with ``task``, ``group`` (the line they belong to) and ``seed`` added.

    A group is named as its sweep's file does, or else by its method and by switches turned away from the method's
    defaults; and by the settings that tell it from other groups of the same name and task. Where some runs of the same
    settings have a sweep's name and others have none, as further seeds of a method that an ablation calls otherwise,
    they are one group with the method's name; but what was superseded keeps its own. No seed is twice in a group: what
    has the settings and the seed of another run, such as a copy, goes to a group "again".

    Args:
        runs: as read from folders or files.
        over: a setting that may differ within a group.
    """
    left = [{k: v for k, v in r["config"].items() if k != over} for r in runs]
    keys = [frozenset((k, v) for k, v in config.items() if k not in INCIDENTAL) for config in left]
    runs = with_one_name(runs, keys)
    # What runs are compared by is part of their task: an error and an accuracy stand in no common table.
    leads = [(r.get("led") or {}).get("label") for r in runs]
    tasks = [task_of(config) + (f", by {lead}" if lead else "") for config, lead in zip(left, leads, strict=True)]
    siblings: dict[tuple[str, str], list[Settings]] = {}
    for run, task, key in zip(runs, tasks, keys, strict=True):
        known = siblings.setdefault((task, name_of(run)), [])
        if key not in known:
            known.append(key)
    out = []
    for run, task, key, again in zip(runs, tasks, keys, repeats(runs, keys, over), strict=True):
        name = name_of(run)
        usual = {} if run.get("label") else switches(run["method"])
        turned = {(k, v) for k, v in key if usual.get(k, v) != v}
        # The one without settings of its own keeps the plain name, in every task.
        own = (key - frozenset.intersection(*siblings[(task, name)])) | turned
        words = sorted(f"{k.removeprefix('algorithm.')}={v}" for k, v in own)
        words += [] if not again else ["again"] if again == 1 else [f"again {again}"]
        group = f"{name} ({', '.join(words)})" if words else name
        out.append({**run, "task": task, "group": group, "seed": run["config"].get("seed", "0")})
    return out


def with_one_name(runs: Sequence[dict[str, Any]], keys: Sequence[Settings]) -> list[dict[str, Any]]:
    """Return the runs without the name that a sweep gave them where others of the same settings have none.

    What was superseded keeps its own.
    """
    unnamed = {key for run, key in zip(runs, keys, strict=True) if not run.get("label")}
    return [
        {**run, "label": None} if key in unnamed and not run.get("superseded") else run
        for run, key in zip(runs, keys, strict=True)
    ]


def name_of(run: dict[str, Any]) -> str:
    """Return what a run's method is called: by its sweep's file, or else by its own name."""
    return run.get("label") or run["method"]


def repeats(runs: Sequence[dict[str, Any]], keys: Sequence[Any], over: str | None) -> list[int]:
    """Count the runs of the same settings and seed that come before each one, finished ones first."""
    seen, out = Counter[Any](), [0] * len(runs)
    for i in sorted(range(len(runs)), key=lambda i: runs[i].get("state", "finished") != "finished"):
        config = runs[i]["config"]
        which = (name_of(runs[i]), keys[i], config.get("seed", "0"), config.get(over or ""))
        out[i] = seen[which]
        seen[which] += 1
    return out
