"""Experiments that come with the package, which a sweep may be based on: a TOML file for each table of the paper."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsmoo.core.errors import FedsmooError, unknown

if TYPE_CHECKING:
    from fedsmoo.sweeps.grid import Sweep

EXPERIMENTS = {
    "accuracy": "test accuracy, for every method and task",
    "rounds": "rounds to target accuracies",
    "communication": "vectors and bytes to a target accuracy",
    "wallclock": "seconds a round, and to a target accuracy",
    "ablation": "FedSMOO without its parts",
    "sensitivity": "FedSMOO over its hyper-parameters",
    "curves": "test accuracy over rounds, smoothed",
    "flatness": "drift of the clients, top eigenvalue and trace of the Hessian",
}


@cache
def read(name: str) -> dict[str, Any]:
    """Read a TOML file of the paper's folder."""
    return tomllib.loads((files("fedsmoo") / "paper" / f"{name}.toml").read_text(encoding="utf-8"))


def description(name: str) -> dict[str, Any]:
    """Return an experiment's table, completed by its own base."""
    if name not in EXPERIMENTS:
        raise unknown("table", name, EXPERIMENTS)
    return completed(read(name))


def completed(own: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a table takes from the experiment that its ``base`` names: settings, methods, selected columns."""
    if "base" not in own:
        return own
    base = description(str(own["base"]))
    out = {**base, **own, "hyper": {**base.get("hyper", {}), **own.get("hyper", {})}}
    if "select" in own:
        for column in own["select"]:
            if column not in base["columns"]:
                raise unknown(f"column of {own['base']}", column, base["columns"])
        out["columns"] = {c: base["columns"][c] for c in own["select"]}
    return out


def load_table(path: Path) -> dict[str, Any]:
    """Read a sweep file; raises a ``FedsmooError`` if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise FedsmooError(f"cannot read the sweep file {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise FedsmooError(f"the sweep file {path} is not valid TOML: {e}") from e


def read_sweep(
    path: Path, overrides: dict[str, Any] | None = None, look: Callable[[dict[str, Any]], Any] = len
) -> Sweep:
    """Expand the sweep in a TOML file, which may be based on an experiment; ``overrides`` win over all of it.

    ``look`` is called with its table before any code that it names is run.
    """
    from fedsmoo.sweeps.grid import expand  # late: the names of experiments stand in --help

    table = completed(load_table(path))
    look(table)
    return expand(table, str(path), overrides)
