"""Reading what others wrote: every value from a run folder is checked before it reaches a page."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

MAX_BYTES = 64 * 2**20  # a larger file is nothing a run writes
MAX_TEXT = 2000


def number(value: Any, digits: int = 6) -> float | int | None:
    """A finite number with so many significant digits, or ``None`` for anything else.

    >>> number(0.123456789, 3), number(float("nan")), number("<b>"), number(True)
    (0.123, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def numbers(values: Any, digits: int = 6, limit: int = 100_000) -> list[float | int | None]:
    """A list of numbers; what is not a list is an empty one."""
    return [number(v, digits) for v in values[:limit]] if isinstance(values, list) else []


def matrix(values: Any, digits: int = 5, limit: int = 2000) -> list[list[float | int | None]] | None:
    """A rectangular table of numbers, or ``None``."""
    if not isinstance(values, list) or not values or not all(isinstance(row, list) for row in values):
        return None
    if len(values) > limit or len(values[0]) > limit or len({len(row) for row in values}) != 1:
        return None
    return [numbers(row, digits) for row in values]


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """Text of bounded length without control characters; it is still hostile, and only ever shown as text."""
    plain = "".join(ch if ch.isprintable() or ch == " " else "\ufffd" for ch in str(value))
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def read_text(path: Path) -> str | None:
    """A plain file of reasonable size as text, or ``None``; never a pipe or a device, which could hang the reader."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or ``None``."""
    content = read_text(path)
    try:
        value = json.loads(content) if content else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_toml(path: Path) -> dict[str, Any] | None:
    """A TOML table from a file, or ``None``."""
    content = read_text(path)
    try:
        return tomllib.loads(content) if content is not None else None
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def for_script(value: Any) -> str:
    """JSON that may stand inside a ``<script>`` element: it cannot close the element, nor start a comment.

    >>> for_script({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    out = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for ch in "<>&\u2028\u2029":
        out = out.replace(ch, f"\\u{ord(ch):04x}")
    return out
