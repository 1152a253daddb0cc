"""Mean and deviation over seeds or rounds, also of numbers that are not finite, or whose sum is not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable


def mean(values: Iterable[float]) -> float:
    """Return the mean; infinite or NaN where the values are. ``statistics.StatisticsError`` if there are none.

    >>> mean([0.1, 0.3]), mean([1e308] * 4), mean([math.inf, -math.inf])
    (0.2, 1e+308, nan)
    """
    each = list(values)
    try:
        return statistics.fmean(each)
    except OverflowError:  # the sum is too large, the mean is not
        return sum(v / len(each) for v in each)
    except ValueError:
        if each:  # infinite both ways
            return math.nan
        raise


def deviation(values: Iterable[float]) -> float:
    """Return the standard deviation of two values or more; NaN if one of them is not finite.

    >>> deviation([70.0, 71.0, 72.0]), deviation([math.inf, 1.0]), deviation([1.7e308, -1.7e308])
    (1.0, nan, inf)
    """
    each = list(values)
    if not all(map(math.isfinite, each)):
        return math.nan
    try:
        return statistics.stdev(each)
    except OverflowError:
        return math.inf


def finite_or_none(value: float | None) -> float | None:
    """Return a number that JSON can hold; ``None`` for one that is not finite, as of a model that diverged."""
    return value if value is not None and math.isfinite(value) else None
