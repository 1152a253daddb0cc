"""Check values that others wrote: numbers, tables and texts of files that may be damaged or hostile."""

from __future__ import annotations

import math
import sys
from typing import Any

MAX_TEXT = 2000


def number(value: Any, digits: int = 6) -> float | int | None:
    """Return a finite number with so many significant digits, or ``None`` for anything else.

    >>> number(0.123456789, 3), number(float("nan")), number("<b>"), number(True)
    (0.123, None, None, None)
    """
    if type(value) is int and abs(value) < 10**digits:  # no digit too many: most counts
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    rounded = float(f"{value:.{digits}g}")
    if not math.isfinite(rounded):  # of the largest numbers, fewer digits may be no number any more
        return None
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def numbers(values: Any, digits: int = 6, limit: int = 100_000) -> list[float | int | None]:
    """Return a list of numbers; empty for what is no list."""
    return [number(v, digits) for v in values[:limit]] if isinstance(values, list) else []


def matrix(values: Any, digits: int = 5, limit: int = 2000) -> list[list[float | int | None]] | None:
    """Return a rectangular table of numbers, or ``None``."""
    if not isinstance(values, list) or not values or not all(isinstance(row, list) for row in values):
        return None
    if len(values) > limit or len(values[0]) > limit or len({len(row) for row in values}) != 1:
        return None
    return [numbers(row, digits) for row in values]


def lines(value: Any) -> str:
    r"""Return text for a terminal, which obeys control characters: without any, further lines set off as such.

    >>> lines("a\x1b[2J\nfedsmoo: done")
    'a�[2J\n  fedsmoo: done'
    """
    return "\n  ".join(text(line, len(line)) for line in str(value).split("\n"))


def to_stderr(line: str) -> None:
    """Print a line to standard error, harmlessly."""
    sys.stderr.write(f"fedsmoo: {lines(line)}\n")


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """Return text of bounded length without control characters; still hostile: show it as text only."""
    plain = "".join(ch if ch.isprintable() or ch == " " else "\ufffd" for ch in str(value))
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
