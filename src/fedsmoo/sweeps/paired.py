"""Methods compared seed by seed: what they share, the split and the starting model, then cancels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsmoo.metrics.average import deviation, mean
from fedsmoo.metrics.quantity import ACCURACY, Quantity
from fedsmoo.runs.record import (
    Record,
    count_without_number,
    last_mean,
    last_personal,
    last_score,
    lead_of,
    say_no_number,
    scores_of,
)
from fedsmoo.runs.traffic import first_reached, human_bytes

Histories = dict[int, list[Record]]  # of one method, by seed
ENOUGH = 3  # seeds below which a difference has no interval


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two methods over the seeds that both have, and half the width of its 95% interval."""

    seeds: tuple[int, ...]
    mean: float
    half: float | None  # None: too few seeds for an interval

    @property
    def clear(self) -> bool:
        """Whether there is an interval, and zero lies outside of it."""
        return self.half is not None and abs(self.mean) > self.half


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> PairedDifference | None:
    """Subtract ``b`` from ``a`` by seed; seeds that only one has are left out. None: they have none in common.

    The interval is Student's: the mean of n differences is known up to t times their deviation over the root of n.
    """
    seeds = tuple(sorted(a.keys() & b.keys()))
    if not seeds:
        return None
    gaps = [a[s] - b[s] for s in seeds]
    half = None
    if len(gaps) >= ENOUGH:
        from scipy.stats import t  # late: it takes a while to import

        half = float(t.ppf(0.975, len(gaps) - 1)) * deviation(gaps) / math.sqrt(len(gaps))
    return PairedDifference(seeds, mean(gaps), half)


def rank_methods(values: Mapping[str, Mapping[int, float]], higher: bool = True) -> list[str]:
    """Sort methods from the best down, by their means over the seeds that all have; none if they share no seed.

    What has no mean, as a run of it diverged, comes last.
    ``higher``: whether more is better.
    """
    keys = _keys(values, higher)
    return sorted(keys, key=keys.__getitem__)


def ranks(values: Mapping[str, Mapping[int, float]], higher: bool = True) -> dict[str, int]:
    """Return each method's rank in that order: 1 is best, and equal ones share the better rank.

    >>> ranks({"a": {0: 0.5}, "b": {0: 0.7}, "c": {0: 0.7}, "d": {0: math.nan}})
    {'a': 3, 'b': 1, 'c': 1, 'd': 4}
    """
    keys = _keys(values, higher)
    return {name: 1 + sum(other < mine for other in keys.values()) for name, mine in keys.items()}


def _keys(values: Mapping[str, Mapping[int, float]], higher: bool) -> dict[str, tuple[bool, float]]:
    """Return what sorts methods from the best down; nothing if they share no seed."""
    there = {name: v for name, v in values.items() if v}
    common = sorted(set.intersection(*(set(v) for v in there.values()))) if there else []
    sign = -1 if higher else 1
    means = {name: sign * mean(v[s] for s in common) for name, v in there.items()} if common else {}
    return {name: (True, 0.0) if math.isnan(m) else (False, m) for name, m in means.items()}


def lead_in_words(values: Mapping[str, Mapping[int, float]]) -> str:
    """Say how far the best method is ahead of the next, and whether that is more than chance; empty without a next."""
    order = rank_methods({name: v for name, v in values.items() if all(map(math.isfinite, v.values()))})
    if len(order) < 2:
        return ""
    first, second = order[:2]
    found = paired_difference(values[first], values[second])
    assert found is not None  # both have the seeds that all have
    if found.mean < 0:  # on the seeds that these two have, others besides, the second is ahead
        first, second, found = second, first, PairedDifference(found.seeds, -found.mean, found.half)
    on = f"{seeds_in_words(found.seeds)}: {first} ends {found.mean:.2f} above {second}"
    if found.half is None:
        few = "one seed carries" if len(found.seeds) == 1 else "two seeds carry"
        return f"{on}; {few} no claim."
    interval = f"95% interval {found.mean - found.half:.2f} to {found.mean + found.half:.2f}, paired by seed"
    return f"{on} ({interval})." if found.clear else f"{on}, which is level ({interval})."


def seeds_in_words(seeds: tuple[int, ...]) -> str:
    """Name seeds in words.

    >>> seeds_in_words((0,)), seeds_in_words((0, 2))
    ('seed 0', 'seeds 0, 2')
    """
    return f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"


@dataclass(frozen=True)
class Row:
    """One method over its seeds: mean and spread; ``None`` where no seed reached the target."""

    method: str
    seeds: int
    score: float  # of the metric that leads: mean of the last ten evaluations, then over seeds
    score_std: float | None  # over seeds; None with one seed
    behind: PairedDifference | None  # less the best method, on shared seeds; None: it is the best, or shares none
    rounds: float | None
    bytes: float | None
    seconds: float  # of local training, per run
    reached: int  # how many seeds reached the target
    personal: float | None = None  # mean over clients of personal models at the end, then over seeds
    worst_tenth: float | None = None  # of them, of the worst tenth of clients
    lead: Quantity = ACCURACY

    @property
    def accuracy(self) -> float:
        """The score, where that is an accuracy."""
        return self.score

    @property
    def accuracy_std(self) -> float | None:
        """Its deviation over seeds."""
        return self.score_std


def verdict(rows: Sequence[Row]) -> str:
    """Say what the column of differences means, and whether the best method's lead is more than chance."""
    best = [r.method for r in rows if r.behind is None]
    others = [r.behind for r in rows if r.behind is not None]
    if not others or len(best) != 1:
        return ""
    fewest = min(len(b.seeds) for b in others)
    if fewest < ENOUGH:
        few = "one seed carries" if fewest == 1 else "two seeds carry"
        return f"against {best[0]} on the same seeds; {few} no claim"
    level = [r.method for r in rows if r.behind is not None and not r.behind.clear and math.isfinite(r.behind.mean)]
    words = f"; level with it: {', '.join(level)}" if level else ""
    return f"against {best[0]} on the same seeds, ± a 95% interval (paired, t){words}"


def make_row(method: str, runs: Histories, target: float, best: Histories | None = None) -> Row:
    """Make a row from the histories of one method, and those of the best one to compare with."""
    scores = {seed: mean_of_last_ten(h) for seed, h in runs.items()}
    hits = [hit for h in runs.values() if (hit := first_reached(h, target)) is not None]
    return Row(
        method,
        len(runs),
        mean(scores.values()),
        deviation(scores.values()) if len(runs) > 1 else None,
        None if best is None else paired_difference(scores, {seed: mean_of_last_ten(h) for seed, h in best.items()}),
        mean(h.round for h in hits) if hits else None,
        mean(h.bytes for h in hits) if hits else None,
        mean(sum(r.seconds_train for r in h) for h in runs.values()),
        len(hits),
        *personal_scores(runs),
        leading_metric({method: runs}),
    )


def leading_metric(runs: dict[str, Histories]) -> Quantity:
    """Return the metric that leads in the runs of a comparison, which all have the same."""
    return next((lead_of(h) for mine in runs.values() for h in mine.values()), ACCURACY)


def missing_scores_note(runs: Mapping[str, Histories]) -> list[str]:
    """Return a line that names the runs whose leading metric has no value in some of the last evaluations, if any."""
    found = [
        f"{label}, seed {seed}: {say_no_number(count, len(scores))}"
        for label, mine in runs.items()
        for seed, history in mine.items()
        if (count := count_without_number(scores := scores_of(history)))
    ]
    return [f"nan: the model diverged, or what it is compared by has no value ({'; '.join(found)})"] if found else []


def personal_scores(runs: Histories) -> tuple[float | None, float | None]:
    """Return the mean over clients and the worst tenth of personal models at the end; ``None`` where a run has none."""
    found = [last_personal(h) for h in runs.values()]
    if not all("personal_worst_tenth" in f for f in found):
        return None, None
    means = [f.get("personal_accuracy", f.get("personal_score")) for f in found]
    return mean(m for m in means if m is not None), mean(f["personal_worst_tenth"] for f in found)


def mean_of_last_ten(history: Sequence[Record]) -> float:
    """Return the mean score of the last ten evaluations, or of all if they are fewer; NaN if one has no number."""
    last_score(history)  # which refuses a history that has none
    return last_mean(scores_of(history))


def make_rows(runs: dict[str, Histories], target: float) -> list[Row]:
    """Make a row for each method; all but the best, by the seeds that all have, are compared with that one."""
    ends = {label: {seed: mean_of_last_ten(h) for seed, h in mine.items()} for label, mine in runs.items()}
    order = rank_methods(ends, leading_metric(runs).higher)
    best = order[0] if order else None
    return [
        make_row(label, mine, target, runs[best] if best not in (None, label) else None) for label, mine in runs.items()
    ]


def common_target(runs: dict[str, Histories]) -> float:
    """Return a target that is fair to all: nine tenths of the best method's accuracy at the end, down to a per cent.

    Of another metric it is a tenth worse than the best method's, in two digits.
    """
    lead = leading_metric(runs)
    best = lead.best(mean(mean_of_last_ten(h) for h in mine.values()) for mine in runs.values())
    return math.nan if best is None else lead.nearly(best)


def row_cells(row: Row) -> list[str]:
    """Return the row as text: seeds, score, how far behind the best, rounds, bytes, seconds."""

    def optional(value: float | None, form: Any) -> str:
        return "-" if value is None else form(value)

    number = row.lead.number
    spread = "" if row.score_std is None or math.isnan(row.score) else f" ± {number(row.score_std)}"
    partly = "" if row.rounds is None or row.reached == row.seeds else f" ({row.reached}/{row.seeds})"
    wide = None if row.behind is None or math.isnan(row.behind.mean) else row.behind.half
    half = "" if wide is None else f" ± {number(wide)}"
    return [
        row.method,
        str(row.seeds),
        f"{number(row.score)}{spread}",
        "" if row.behind is None else f"{number(row.behind.mean, '+')}{half}",
        optional(row.rounds, lambda v: f"{v:.1f}".removesuffix(".0")) + partly,
        optional(row.bytes, human_bytes),
        f"{row.seconds:.1f}",
    ]


def personal_cells(row: Row) -> list[str]:
    """Return what a row says of personal models, as text."""
    return ["-" if v is None else row.lead.number(v) for v in (row.personal, row.worst_tenth)]
