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
        if Path(name).exists():
            raise FedsmooError(
                f"{name} is a path, but tables are the paper's: {', '.join(EXPERIMENTS)}; of runs of yours 'fedsmoo "
                "compare' makes a table, 'fedsmoo report' a page"
            )
        raise unknown("table", name, EXPERIMENTS)
    return with_base(read(name))


def with_base(own: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a table takes from the experiment that its ``base`` names: settings, methods, selected columns."""
    if "base" not in own:
        if "select" in own:
            raise FedsmooError("select names columns of a base, but there is no base: name one, or leave select out")
        return own
    base = description(str(own["base"]))
    for name, kind in {"hyper": dict, "select": list}.items():
        if not isinstance(own.get(name, kind()), kind):
            what = "a table of settings" if kind is dict else "a list of columns"
            raise FedsmooError(f"{name} is {own[name]!r}, but must be {what}")
    if "select" in own and "columns" in own:
        raise FedsmooError("both select and columns say which columns there are: choose one")
    out = {**base, **own, "hyper": {**base.get("hyper", {}), **own.get("hyper", {})}}
    if "select" in own:
        for column in own["select"]:
            if column not in base["columns"]:
                raise unknown(f"column of {own['base']}", column, base["columns"])
        out["columns"] = {c: base["columns"][c] for c in own["select"]}
    if "columns" not in own:
        refuse_overruled(own, out["columns"])
    return out


def refuse_overruled(own: dict[str, Any], columns: dict[str, dict[str, Any]]) -> None:
    """Refuse settings and hyper-parameters of a table that each column of its base sets otherwise: no run has them."""
    parts = [(own, list(columns.values())), (own.get("hyper", {}), [c.get("hyper", {}) for c in columns.values()])]
    for given, theirs in parts:
        for name in given.keys() - {"hyper"}:
            if all(name in column and column[name] != given[name] for column in theirs):
                raise FedsmooError(
                    f"{name} is {given[name]!r}, but each column of {own['base']} says its own {name}: write columns "
                    "of yours" + (f", or set {name} beside the sweep" if given is own else "")
                )


def load_table(path: Path) -> dict[str, Any]:
    """Read a sweep file; raises a ``FedsmooError`` if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
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

    found = load_table(path)
    if not found:
        raise FedsmooError(f"the sweep file {path} is empty: say what to run, such as seed = [0, 1, 2]")
    table = with_base(found)
    look(table)
    return expand(table, str(path), overrides)
