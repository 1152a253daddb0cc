"""What the workers share: the workload from a file, an answer as JSON. Needs torch and numpy alone.

Rivals live in environments without our package, so the model's file is loaded by its path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SMALL = Path(__file__).parents[2] / "src" / "fedsmoo" / "models" / "small.py"


@dataclass(frozen=True)
class Workload:
    """The data, who holds which samples, the first weights, and the numbers of the run."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    clients: list[np.ndarray]
    start: dict[str, Tensor]
    settings: dict[str, Any]

    @property
    def rounds(self) -> int:
        return self.settings["warm_up"] + self.settings["rounds"]

    def module(self) -> nn.Module:
        """A fresh model with the first weights."""
        model = small_models().MLP(64, 10)
        model.load_state_dict(self.start)
        return model


@cache
def small_models() -> Any:
    spec = importlib.util.spec_from_file_location("fedsmoo_small_models", SMALL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def workload() -> Workload:
    """The workload that the environment variable names; read once in a process."""
    with np.load(os.environ["RIVALS_WORKLOAD"]) as f:
        arrays = dict(f)
    clients = np.split(arrays["samples"], arrays["ends"][:-1])
    start = {n.removeprefix("start."): torch.from_numpy(a) for n, a in arrays.items() if n.startswith("start.")}
    data = {n: torch.from_numpy(arrays[n]) for n in ("x_train", "y_train", "x_test", "y_test")}
    return Workload(**data, clients=clients, start=start, settings=json.loads(str(arrays["settings"])))


class Clock:
    """The lengths of rounds, from the moment it is made."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.last = time.perf_counter()

    def lap(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now


@torch.no_grad()
def accuracy(model: nn.Module, work: Workload) -> float:
    return float((model(work.x_test).argmax(1) == work.y_test).float().mean())


def descendants(pid: int) -> list[int]:
    """A process and all that came from it and are still there."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has just ended
    found = [pid]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found


def memory_bytes() -> int | None:
    """Memory of this process and all it started, shared pages counted once; none where the system does not say."""
    total = 0
    try:
        for pid in descendants(os.getpid()):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    except (OSError, StopIteration):
        return None
    return total


def answer(clock: Clock, model: nn.Module, packages: list[str], memory: int | None) -> None:
    """Write what was measured where the environment variable says."""
    work = workload()
    if len(clock.seconds) != work.rounds:
        raise SystemExit(f"{len(clock.seconds)} rounds were timed, but {work.rounds} asked for")
    out = {
        "seconds_per_round": clock.seconds,
        "test_accuracy": accuracy(model, work),
        "memory_bytes": memory,
        "versions": {p: version(p) for p in packages} | {"torch": torch.__version__},
    }
    Path(os.environ["RIVALS_ANSWER"]).write_text(json.dumps(out))
