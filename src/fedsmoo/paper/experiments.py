"""The paper as experiments: one TOML per table or figure, and the numbers it printed (Sun et al., ICML 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.core.share import count_of_share
from fedsmoo.runs.config import FIELDS
from fedsmoo.runs.origin.identity import SAME_RUN
from fedsmoo.sweeps.bases import description, read
from fedsmoo.sweeps.grid import Cell, Sweep, expand


def published() -> dict[str, Any]:
    """Read the printed numbers."""
    return read("published")


def paper_accuracy(column: str, method: str) -> tuple[float | None, float | None]:
    """Return the printed accuracy and its half-width; none where nothing was printed."""
    who, _, task = column.partition(" ")
    block = published()["accuracy"].get(who, {})
    if task not in block.get("columns", ()) or method not in block:
        return None, None
    k = block["columns"].index(task)
    return block[method][k], block[f"{method}_pm"][k]


def experiment(
    name: str,
    columns: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    scale: float = 1.0,
    overrides: dict[str, Any] | None = None,
) -> Sweep:
    """Expand one of the paper's tables, or a part of it, into runs with a share, ``scale``, of the paper's rounds."""
    table = dict(description(name))
    table["columns"] = chosen(table["columns"], columns, "column", column_words)
    table["methods"] = chosen(table["methods"], methods, "method", lambda n: {n, n.lower()})
    changes = dict(overrides or {})
    if seeds:
        changes["seed"] = list(seeds)
    if not 0 < scale <= 1:
        raise FedsmooError(f"--scale is {scale:g}, but must be above 0 and at most 1")
    if scale != 1:
        changes["rounds"] = max(1, count_of_share(int(changes.get("rounds", table["rounds"])), scale, round))
    sweep = expand(table, f"the table {name}", changes)
    refuse_several(name, sweep)
    title = sweep.title if scale == 1 else f"{sweep.title} ({scale:g} of the paper's rounds)"
    return Sweep(title, sweep.cells, {**sweep.about, "name": name, "notes": departures(table, changes)})


def refuse_several(name: str, sweep: Sweep) -> None:
    """Refuse lists of values: a cell of a table is one run over its seeds, and would be a mean over runs of all."""
    first: dict[tuple[str, str, int], Cell] = {}
    for cell in sweep.cells:
        other = first.setdefault((cell.method, cell.column, cell.config.seed), cell)
        if other is not cell:
            pairs = [(n, getattr(other.config, n), getattr(cell.config, n)) for n in FIELDS]
            values = "; ".join(f"{n} {a} and {b}" for n, a, b in pairs if a != b)
            raise FedsmooError(
                f"the table {name} has one run for each method, column and seed, but several values are given "
                f"({values}): make a table of each"
            )


def departures(table: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    """Return a line that names what is not as in the paper, if anything."""
    words = [f"{k} = {v}" for k, v in changes.items() if k not in ("seed", *SAME_RUN) and str(v) != str(table.get(k))]
    return [f"Not the paper's setting, so not comparable with its numbers: {', '.join(words)}."] if words else []


def column_words(name: str) -> set[str]:
    """Return what a column may be called: its name, or some of its parts in order.

    >>> sorted(column_words("5%-of-200 cifar10.iid"))
    ['5%-of-200', '5%-of-200 cifar10', '5%-of-200 cifar10.iid', 'cifar10', 'cifar10.iid', 'iid']
    """
    who, space, task = name.partition(" ")
    data, _, division = task.partition(".")
    if not space or not division or division.isdecimal():  # a setting and its value, such as lr decay 0.998
        return {name, name.rpartition(" ")[0]}
    return {name, who, data, division, task, f"{who} {data}"}


def chosen(there: dict[str, Any], wanted: Iterable[str], kind: str, words: Any) -> dict[str, Any]:
    """Select the entries that one of the wanted words names, in their own order; all if nothing is wanted."""
    wanted = list(wanted)
    for word in wanted:
        if not any(word in words(n) or word.lower() in words(n) for n in there):
            raise unknown(kind, word, there)
    names = [n for n in there if not wanted or any(w in words(n) or w.lower() in words(n) for w in wanted)]
    return {n: there[n] for n in names}
