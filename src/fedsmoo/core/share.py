"""A share of a number of things, as a whole number."""

from __future__ import annotations

import math
from collections.abc import Callable

DIGITS = 12  # fewer than a product of two floats has right, more than anybody writes


def count_of_share(n: float, share: float, whole: Callable[[float], int] = math.floor) -> int:
    """Return a share of n as a whole number: the one below, or what ``whole`` makes of it (``math.ceil``, ``round``).

    Floats are near a share: ``0.29 * 100`` is 28.999999999999996 and ``0.07 * 100`` is 7.000000000000001.

    >>> count_of_share(100, 0.29), count_of_share(100, 0.07, math.ceil), count_of_share(90, 0.35, round)
    (29, 7, 32)
    """
    return whole(float(f"{n * share:.{DIGITS}g}"))
