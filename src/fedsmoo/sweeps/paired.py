"""Two methods compared seed by seed: what they share, the split and the starting model, then cancels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsmoo.metrics.average import deviation, mean

if TYPE_CHECKING:
    from fedsmoo.sweeps.comparison import Row

ENOUGH = 3  # seeds below which a difference has no interval


@dataclass(frozen=True)
class Paired:
    """The mean difference of two methods over the seeds that both have, and half the width of its 95% interval."""

    seeds: tuple[int, ...]
    mean: float
    half: float | None  # None: too few seeds for an interval

    @property
    def clear(self) -> bool:
        """Whether there is an interval, and zero lies outside of it."""
        return self.half is not None and abs(self.mean) > self.half


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Paired | None:
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
    return Paired(seeds, mean(gaps), half)


def ranked(values: Mapping[str, Mapping[int, float]], higher: bool = True) -> list[str]:
    """Sort methods from the best down, by their means over the seeds that all have; none if they share no seed.

    ``higher``: whether more is better.
    """
    there = {name: v for name, v in values.items() if v}
    common = set.intersection(*(set(v) for v in there.values())) if there else set()
    if not common:
        return []
    sign = -1 if higher else 1
    return sorted(there, key=lambda name: sign * mean(there[name][s] for s in sorted(common)))


def lead(values: Mapping[str, Mapping[int, float]]) -> str:
    """Say how far the best method is ahead of the next, and whether that is more than chance; empty without a next."""
    order = ranked(values)
    if len(order) < 2:
        return ""
    first, second = order[:2]
    found = paired(values[first], values[second])
    assert found is not None  # both have the seeds that all have
    if found.mean < 0:  # on the seeds that these two have, others besides, the second is ahead
        first, second, found = second, first, Paired(found.seeds, -found.mean, found.half)
    on = f"{named(found.seeds)}: {first} ends {found.mean:.2f} above {second}"
    if found.half is None:
        few = "one seed carries" if len(found.seeds) == 1 else "two seeds carry"
        return f"{on}; {few} no claim."
    interval = f"95% interval {found.mean - found.half:.2f} to {found.mean + found.half:.2f}, paired by seed"
    return f"{on} ({interval})." if found.clear else f"{on}, which is level ({interval})."


def named(seeds: tuple[int, ...]) -> str:
    """Name seeds in words.

    >>> named((0,)), named((0, 2))
    ('seed 0', 'seeds 0, 2')
    """
    return f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"


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
    level = [r.method for r in rows if r.behind is not None and not r.behind.clear]
    words = f"; level with it: {', '.join(level)}" if level else ""
    return f"against {best[0]} on the same seeds, ± a 95% interval (paired, t){words}"
