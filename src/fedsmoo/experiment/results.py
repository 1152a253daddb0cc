"""Measured results: a small JSON file per run, from which tables are made, and run folders read the same way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.experiment.config import FIELDS, Config
from fedsmoo.experiment.identity import config_of, identity
from fedsmoo.experiment.label import read_label
from fedsmoo.experiment.loop import Record
from fedsmoo.experiment.runfolder import (
    ABSENT,
    CONFIG,
    STARTED,
    SUMMARY,
    read_json,
    read_run,
    write_atomically,
)
from fedsmoo.experiment.sweep import run_name

FORMAT = "fedsmoo result 1"
# Enough digits for every table: an accuracy on ten thousand samples is exact, a loss has six.
DIGITS = {"test_accuracy": 8, "test_loss": 6, "train_loss": 6, "drift": 6, "seconds_train": 4, "seconds_eval": 4}
DIGITS |= {"drift_after": 6, "validation_accuracy": 8}
COLUMNS = (
    "test_accuracy",
    "test_loss",
    "train_loss",
    "drift",
    "bytes_up",
    "bytes_down",
    "seconds_train",
    "seconds_eval",
)
LATER = ("drift_after", "validation_accuracy")  # columns that older files, and runs without a holdout, do not have
FACTS = (
    "engine",
    "engine_why",
    "chunk",
    "ranks",
    "device",
    "device_type",
    "threads",
    "packed",
    "parameters",
    "parameters_full",
    "versions",
    "commit",
    "command",
    "finished",
    "contents",
    "label",
)


@dataclass(frozen=True)
class Measured:
    """One finished run: its config, its curve by column, and what made it."""

    config: Config
    curve: dict[str, list[Any]]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        return identity(self.config, self.facts.get("contents"))

    @property
    def history(self) -> list[Record]:
        """The rounds, without who took part in them."""
        names = ("round", *COLUMNS, *(n for n in LATER if n in self.curve))
        rows = zip(*(self.curve[n] for n in names), strict=True)
        return [Record(**dict(zip(names, row, strict=True)), lr=0.0, cohort=[]) for row in rows]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy of the evaluated rounds."""
        return [a for a in self.curve["test_accuracy"] if a is not None]


def rounded(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def constant(values: list[Any]) -> Any:
    """One value where all are the same."""
    return values[0] if len(set(values)) == 1 else values


def from_folder(path: Path) -> Measured:
    """A run folder's result; rounded as in the file, so that both give the same tables."""
    config, history = read_run(path)
    facts = {**read_json(path / STARTED), **read_json(path / SUMMARY), "label": read_label(path)}
    curve: dict[str, list[Any]] = {"round": [r.round for r in history]}
    for name in (*COLUMNS, *(n for n in LATER if any(getattr(r, n) is not None for r in history))):
        curve[name] = [rounded(getattr(r, name), DIGITS.get(name, 17)) for r in history]
    kept = {k: facts[k] for k in FACTS if facts.get(k) is not None}
    hessian = read_json(path / "analysis" / "hessian.json")
    if hessian:
        kept["hessian"] = {"top": max(hessian.get("eigenvalues") or [None]), "trace": hessian.get("trace")}
    return Measured(config, curve, kept)


def to_json(result: Measured) -> str:
    """The file of a result: one line a field, so that differences can be read."""
    curve = {k: constant(v) if k.startswith("bytes") else v for k, v in result.curve.items()}
    config = result.config.replace(data=None).to_dict()  # where the data lay concerns nobody else
    seconds = [s for s in result.curve["seconds_train"] if s is not None]
    lines = {
        "format": FORMAT,
        "config": {k: v for k, v in config.items() if v is not None or FIELDS[k].default is not None},
        **{k: result.facts[k] for k in (*FACTS, "hessian") if k in result.facts},
        "rounds": len(result.curve["round"]),
        "seconds_per_round": rounded(sum(seconds) / max(len(seconds), 1), 4),
    }
    text = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in lines.items()]
    inner = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in curve.items())
    return "{\n" + ",\n".join([*text, '  "curve": {\n' + inner + "\n  }"]) + "\n}\n"


def from_json(path: Path) -> Measured:
    """The result in a file."""
    value = read_json(path)
    if value.get("format") != FORMAT:
        raise FedsmooError(f"{path} is not a result of this version ({FORMAT!r})")
    if not isinstance(value.get("config"), dict) or not isinstance(value.get("curve"), dict):
        raise FedsmooError(f"{path} is cut or damaged: it has no config or no curve; export the run again")
    rounds = len(value["curve"].get("round", ()))
    curve = {k: v if isinstance(v, list) else [v] * rounds for k, v in value["curve"].items()}
    if any(len(curve.get(n, ())) != rounds for n in (*COLUMNS, *(n for n in LATER if n in curve))):
        raise FedsmooError(f"{path} is damaged: the columns of its curve differ in length; export the run again")
    facts = {k: value[k] for k in (*FACTS, "hessian") if k in value}
    return Measured(config_of(value["config"]), curve, facts)


def export(folders: Sequence[Path], to: Path) -> list[Path]:
    """Write the results of finished runs; returns the files."""
    out = []
    for folder in finished_runs(folders):
        result = from_folder(folder)
        path = to / f"{run_name(result.config)}.json"
        try:
            to.mkdir(parents=True, exist_ok=True)
            write_atomically(path, to_json(result))
        except OSError as e:
            raise FedsmooError(f"cannot write {path}: {e.strerror}; choose another --to") from e
        out.append(path)
    return out


def finished_runs(folders: Iterable[Path], depth: int = 3) -> list[Path]:
    """Run folders with a summary, at or below the given ones."""
    out: list[Path] = []
    for folder in folders:
        if (folder / CONFIG).is_file():
            out += [folder] if (folder / SUMMARY).is_file() else []
        elif depth:
            with suppress(*ABSENT):  # no folder, or none any more
                out += finished_runs(sorted(p for p in folder.iterdir() if p.is_dir()), depth - 1)
    return out


def collect(runs: Sequence[Path] = (), results: Path | None = None) -> dict[str, Measured]:
    """Everything measured, by identity; a run folder wins over a file."""
    out: dict[str, Measured] = {}
    if results is not None and results.is_dir():
        for path in sorted(results.glob("*.json")):
            content = read_json(path)
            if isinstance(content, dict) and content.get("format") == FORMAT:  # other measurements may lie beside them
                value = from_json(path)
                out[value.identity] = value
    for folder in finished_runs(runs):
        value = from_folder(folder)
        out[value.identity] = value
    return out
