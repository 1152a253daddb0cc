"""A run's folder: the resolved config, metrics round by round, the final model, and what made them."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from fedsmoo.core import FedsmooError
from fedsmoo.experiment.config import Config, named_tables, read_toml, to_toml
from fedsmoo.experiment.ledger import reached
from fedsmoo.experiment.loop import Record, Result
from fedsmoo.version import __version__

CONFIG, METRICS, SUMMARY, MODEL = "config.toml", "metrics.jsonl", "summary.json", "model.safetensors"


class RunFolder:
    """Writes one run; refuses a folder that already holds one."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        if (path / CONFIG).exists() or (path / METRICS).exists():
            raise FedsmooError(f"the folder {path} already holds a run: choose another --out, nothing was overwritten")
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / CONFIG, to_toml(config.to_dict()))
            self.metrics = (path / METRICS).open("x", encoding="utf-8")
        except OSError as e:
            raise FedsmooError(f"cannot write the run folder {path}: {e.strerror}") from e

    def record(self, record: Record) -> None:
        """One line of metrics, on disk before the next round starts."""
        try:
            self.metrics.write(json.dumps(asdict(record)) + "\n")
            self.metrics.flush()
        except OSError as e:
            raise FedsmooError(f"cannot write {self.path / METRICS}: {e.strerror}; the rounds before are kept") from e

    def finish(self, result: Result, config: Config) -> dict[str, Any]:
        """The model and the summary; returns the summary."""
        self.metrics.close()
        model = result.simulation.setup.task.model
        state = {n: p.contiguous().cpu() for n, p in model.state_dict(result.server.w).items()}
        summary = {**summarise(result.history, config.target), **provenance(result)}
        try:
            save_file(state, self.path / (MODEL + ".part"), metadata={"fedsmoo": __version__, "model": config.model})
            os.replace(self.path / (MODEL + ".part"), self.path / MODEL)
            write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")
        except OSError as e:
            raise FedsmooError(f"cannot write the results into {self.path}: {e.strerror}") from e
        return summary


def write_atomically(path: Path, text: str) -> None:
    """The whole file or nothing."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def summarise(history: list[Record], target: float | None) -> dict[str, Any]:
    """A run in a few numbers: the last round, the mean of the last ten beside it, and what was spent."""
    tested = [r for r in history if r.test_accuracy is not None]
    last = [r.test_accuracy for r in tested[-10:] if r.test_accuracy is not None]
    hit = reached(history, target) if target is not None else None
    return {
        "rounds": len(history),
        "test_accuracy": last[-1] if last else None,
        "test_accuracy_last10": float(np.mean(last)) if last else None,
        "best_accuracy": max((r.test_accuracy or 0.0 for r in tested), default=None),
        "test_loss": tested[-1].test_loss if tested else None,
        "bytes_up": sum(r.bytes_up for r in history),
        "bytes_down": sum(r.bytes_down for r in history),
        "seconds_train": sum(r.seconds_train for r in history),
        "seconds_eval": sum(r.seconds_eval for r in history),
        "target": target,
        "target_reached": None if hit is None else asdict(hit),
    }


def provenance(result: Result) -> dict[str, Any]:
    """Engine, hardware, versions and the command behind a run."""
    task = result.simulation.setup.task
    device = torch.cuda.get_device_name(task.device) if task.device.type == "cuda" else platform.processor() or "cpu"
    return {
        "engine": result.simulation.engine.name,
        "device": device,
        "parameters": task.model.layout.size,
        "parameters_full": task.model.full_size,
        "seed": result.simulation.training.seed,
        "versions": {"fedsmoo": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "command": " ".join(["fedsmoo", *sys.argv[1:]]),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def read_run(path: Path) -> tuple[Config, list[Record]]:
    """The config and the metrics of a run folder; a torn last line (a killed run) is left out."""
    if not (path / CONFIG).is_file():
        raise FedsmooError(f"{path} is not a run folder: it has no {CONFIG}")
    config = Config(**named_tables(read_toml(path / CONFIG), str(path / CONFIG)))
    records = []
    lines = (path / METRICS).read_text(encoding="utf-8").splitlines() if (path / METRICS).exists() else []
    for i, line in enumerate(lines):
        try:
            records.append(Record(**json.loads(line)))
        except (ValueError, TypeError) as e:
            if i == len(lines) - 1:
                break
            raise FedsmooError(f"{path / METRICS}, line {i + 1}: not a round's record") from e
    return config, records
