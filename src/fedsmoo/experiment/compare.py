"""The same task for several methods and seeds, and the table of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsmoo.experiment.ledger import reached
from fedsmoo.experiment.loop import Record, last_accuracy


@dataclass(frozen=True)
class Row:
    """One method over its seeds: mean and spread; ``None`` where no seed reached the target."""

    method: str
    seeds: int
    accuracy: float
    accuracy_std: float | None  # over seeds; None with one seed
    rounds: float | None
    bytes: float | None
    seconds: float  # of local training, per run
    reached: int  # how many seeds reached the target


def row(method: str, runs: Sequence[Sequence[Record]], target: float) -> Row:
    """A table's row from the histories of one method, a history per seed."""
    accuracies = [last_accuracy(h) for h in runs]
    hits = [hit for h in runs if (hit := reached(h, target)) is not None]
    return Row(
        method,
        len(runs),
        statistics.fmean(accuracies),
        statistics.stdev(accuracies) if len(runs) > 1 else None,
        statistics.fmean(h.round for h in hits) if hits else None,
        statistics.fmean(h.bytes for h in hits) if hits else None,
        statistics.fmean(sum(r.seconds_train for r in h) for h in runs),
        len(hits),
    )


def common_target(runs: dict[str, list[list[Record]]]) -> float:
    """A target that is fair to all: nine tenths of the best method's last accuracy, rounded down to a per cent."""
    best = max(statistics.fmean(last_accuracy(h) for h in histories) for histories in runs.values())
    return int(90 * best + 1e-9) / 100 or 0.01  # 90 * 0.7 is 62.99...


def cells(row: Row) -> list[str]:
    """The row as text: accuracy, rounds, bytes, seconds."""

    def optional(value: float | None, form: Any) -> str:
        return "-" if value is None else form(value)

    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    partly = "" if row.rounds is None or row.reached == row.seeds else f" ({row.reached}/{row.seeds})"
    return [
        row.method,
        f"{100 * row.accuracy:.2f}{spread}",
        optional(row.rounds, lambda v: f"{v:.0f}") + partly,
        optional(row.bytes, human_bytes),
        f"{row.seconds:.1f}",
    ]


def human_bytes(n: float) -> str:
    """Bytes for people: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
