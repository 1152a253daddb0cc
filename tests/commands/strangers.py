"""What a stranger may send: run folders, results and splits that name code which leaves a mark when it is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsmoo.runs.settings.fields import BROUGHT

SETTINGS = BROUGHT
WAYS = ("absolute", "relative", "link")
MARK = "IMPORTED"
CODE = f"""
import pathlib
import numpy as np
import torch
from fedsmoo import FedAvg, stream

with pathlib.Path(__file__).resolve().with_name("{MARK}").open("a") as f:
    f.write("x")

class Method(FedAvg):
    pass

def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

def data(seed=0):
    x = np.arange(320, dtype=np.float32).reshape(40, 8)
    y = np.arange(40) % 4
    return x, y, x, y

def divide(labels, classes, clients, seed):
    return np.array_split(np.arange(len(labels)), clients)

def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")

def draw(seed, round, clients, cohort):
    return list(range(cohort))
"""
NAMES = dict.fromkeys(SETTINGS, "Method") | {"model": "net", "dataset": "data", "partition": "divide"}
NAMES |= {"loss": "loss", "sampling": "draw"}
PLAIN = {"algorithm": "fedavg", "rounds": 2, "clients": 4, "cohort": 2, "model": "softmax", "local_steps": 1}
ROUND = {"test_loss": 1.5, "train_loss": 2.0, "drift": 0.25, "lr": 0.1, "cohort": [0, 3], "bytes_up": 40}
ROUND |= {"bytes_down": 80, "seconds_train": 0.5, "seconds_eval": 0.25}


def evil_code(root: Path) -> dict[str, str]:
    """Write the code; returns how a config may name its file. The current folder must be the root."""
    (root / "evil.py").write_text(CODE)
    (root / "linked.py").symlink_to(root / "evil.py")
    return {"absolute": str(root / "evil.py"), "relative": "evil.py", "link": str(root / "linked.py")}


def config_text(**settings: Any) -> str:
    return "".join(f"{k} = {json.dumps(v)}\n" for k, v in {**PLAIN, **settings}.items())


def evil_run(folder: Path, finished: bool = True, started: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A run folder of two rounds whose config says what it is given."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config_text(**settings))
    rounds = [json.dumps({"round": t, "test_accuracy": t / 4, **ROUND}) + "\n" for t in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(rounds))
    (folder / "started.json").write_text(json.dumps(started or {"engine": "serial", "parameters": 650}))
    if finished:
        facts = {"rounds": 2, "test_accuracy": 0.5, "parameters": 650, "parameters_full": 650, "finished": "then"}
        (folder / "summary.json").write_text(json.dumps(facts))
    return folder


def evil_runs(root: Path, finished: bool = True) -> list[Path]:
    """One run for each setting that may name code, and each way to name its file."""
    ways = evil_code(root)
    return [
        evil_run(root / "theirs" / f"{setting}-{way}", finished, **{setting: f"{ways[way]}:{NAMES[setting]}"})
        for setting in SETTINGS
        for way in WAYS
    ]


def marked(root: Path) -> bool:
    """Whether the code was imported."""
    return (root / MARK).exists()
