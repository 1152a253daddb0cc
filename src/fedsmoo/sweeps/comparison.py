"""The same task for several methods and seeds, and the table of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsmoo.runs.record import Record, last_accuracy
from fedsmoo.runs.traffic import reached
from fedsmoo.sweeps.paired import ENOUGH, Paired, paired, ranked

TEN = 10  # evaluations in a mean at the end of a run
Histories = dict[int, list[Record]]  # of one method, by seed


@dataclass(frozen=True)
class Row:
    """One method over its seeds: mean and spread; ``None`` where no seed reached the target."""

    method: str
    seeds: int
    accuracy: float  # mean of the last ten evaluations, then over seeds
    accuracy_std: float | None  # over seeds; None with one seed
    behind: Paired | None  # less the best method, on the seeds that both have; None: it is the best, or they share none
    rounds: float | None
    bytes: float | None
    seconds: float  # of local training, per run
    reached: int  # how many seeds reached the target


def row(method: str, runs: Histories, target: float, best: Histories | None = None) -> Row:
    """A table's row from the histories of one method, and those of the best one to compare with."""
    accuracies = {seed: last_ten(h) for seed, h in runs.items()}
    hits = [hit for h in runs.values() if (hit := reached(h, target)) is not None]
    return Row(
        method,
        len(runs),
        statistics.fmean(accuracies.values()),
        statistics.stdev(accuracies.values()) if len(runs) > 1 else None,
        None if best is None else paired(accuracies, {seed: last_ten(h) for seed, h in best.items()}),
        statistics.fmean(h.round for h in hits) if hits else None,
        statistics.fmean(h.bytes for h in hits) if hits else None,
        statistics.fmean(sum(r.seconds_train for r in h) for h in runs.values()),
        len(hits),
    )


def last_ten(history: Sequence[Record]) -> float:
    """The mean accuracy of the last ten evaluations, or of all if they are fewer."""
    last_accuracy(history)  # which refuses a history that has none
    return statistics.fmean([r.test_accuracy for r in history if r.test_accuracy is not None][-TEN:])


def compared(runs: dict[str, Histories], target: float) -> list[Row]:
    """A row for each method; all but the best, by the seeds that all have, are compared with that one."""
    order = ranked({label: {seed: last_ten(h) for seed, h in mine.items()} for label, mine in runs.items()})
    best = order[0] if order else None
    return [row(label, mine, target, runs[best] if best not in (None, label) else None) for label, mine in runs.items()]


def common_target(runs: dict[str, Histories]) -> float:
    """A target that is fair to all: nine tenths of the best method's accuracy at the end, down to a per cent."""
    best = max(statistics.fmean(last_ten(h) for h in mine.values()) for mine in runs.values())
    return int(90 * best + 1e-9) / 100 or 0.01  # 90 * 0.7 is 62.99...


def cells(row: Row) -> list[str]:
    """The row as text: seeds, accuracy, how far behind the best, rounds, bytes, seconds."""

    def optional(value: float | None, form: Any) -> str:
        return "-" if value is None else form(value)

    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    partly = "" if row.rounds is None or row.reached == row.seeds else f" ({row.reached}/{row.seeds})"
    half = "" if row.behind is None or row.behind.half is None else f" ± {100 * row.behind.half:.2f}"
    return [
        row.method,
        str(row.seeds),
        f"{100 * row.accuracy:.2f}{spread}",
        "" if row.behind is None else f"{100 * row.behind.mean:+.2f}{half}",
        optional(row.rounds, lambda v: f"{v:.0f}") + partly,
        optional(row.bytes, human_bytes),
        f"{row.seconds:.1f}",
    ]


def verdict(rows: Sequence[Row]) -> str:
    """What the column of differences means, and whether the best method's lead says anything."""
    best = [r.method for r in rows if r.behind is None]
    others = [r.behind for r in rows if r.behind is not None]
    if not others or len(best) != 1:
        return ""
    fewest = min(len(b.seeds) for b in others)
    if fewest < ENOUGH:
        few = "one seed carries" if fewest == 1 else "two seeds carry"
        return f"against {best[0]} on the same seeds; {few} no claim"
    level = [r.method for r in rows if r.behind is not None and not r.behind.clear]
    words = f"; level with it: {', '.join(level)}" if level else ""
    return f"against {best[0]} on the same seeds, ± a 95% interval (paired, t){words}"


def human_bytes(n: float) -> str:
    """Bytes for people: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
