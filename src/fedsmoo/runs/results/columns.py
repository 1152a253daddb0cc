"""Metrics of a run's rounds as columns of numbers, ``metrics.mse``, and rounds from such columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def record_of(values: Mapping[str, Any], lower: list[str]) -> Record:
    """Return a round from its values by column; ``lower``: metrics of the user's own of which less is better."""
    plain = {n: v for n, v in values.items() if not is_metric(n)}
    tables: dict[str, Any] = {
        table: {n.partition(".")[2]: v for n, v in values.items() if n.partition(".")[0] == table} for table in TABLES
    }
    there = {table: found for table, found in tables.items() if any(v is not None for v in found.values())}
    return Record(**plain, lr=0.0, cohort=[], **there, lower=lower if there else [])
