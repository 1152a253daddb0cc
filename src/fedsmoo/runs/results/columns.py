"""Metrics of a run's rounds as columns of numbers, ``metrics.mse``, and rounds from such columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.runs.record import Record

TABLES = ("metrics", "validation_metrics")  # of a record


def is_metric(column: str) -> bool:
    """Return whether a column is of a metric."""
    return column.partition(".")[0] in TABLES


def metric_columns(history: Sequence[Record]) -> dict[str, list[float | None]]:
    """Return a column for each metric of the rounds; none where only the accuracy was measured."""
    out = {}
    for table in TABLES:
        for name in dict.fromkeys(n for r in history for n in getattr(r, table)):
            out[f"{table}.{name}"] = [getattr(r, table).get(name) for r in history]
    return out


def records_of(curve: Mapping[str, Sequence[Any]], lower: list[str]) -> list[Record]:
    """Return the rounds of columns; ``lower``: metrics of the user's own of which less is better."""
    plain = [n for n in curve if not is_metric(n)]
    tables = {table: [n for n in curve if n.partition(".")[0] == table] for table in TABLES}
    names = {n: n.partition(".")[2] for columns in tables.values() for n in columns}
    records = []
    for k, row in enumerate(zip(*(curve[n] for n in plain), strict=True)):
        found = {t: {names[n]: curve[n][k] for n in columns} for t, columns in tables.items()} if names else {}
        values = dict(zip(plain, row, strict=True))
        # A round that was tested has its metrics, though none of them may have a value for what diverged.
        tested = values.get("test_loss") is not None
        there: dict[str, Any] = {
            t: v
            for t, v in found.items()
            if any(x is not None for x in v.values()) or (tested and v and t == "metrics")
        }
        records.append(Record(**values, lr=0.0, cohort=[], **there, lower=lower if there else []))
    return records


def round_digits(value: Any, digits: int) -> Any:
    """Return a number with so many digits; anything else as it is."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def refuse_cut(rounds: Sequence[int], wanted: int, path: Path) -> None:
    """Refuse a finished run without all of its rounds: an earlier one would pass for its last, and others twice."""
    if list(rounds) != list(range(1, len(rounds) + 1)):
        raise FedsmooError(f"{path} is damaged: its rounds are not 1, 2, 3, ...; export the run again")
    if len(rounds) < wanted:
        raise FedsmooError(f"{path} is cut: it has {len(rounds)} of {wanted} rounds; carry the run out again")
