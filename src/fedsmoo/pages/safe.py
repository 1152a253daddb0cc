"""Read files that others wrote: what is no plain file, too large or damaged is nothing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

MAX_BYTES = 64 * 2**20  # a larger file is nothing a run writes


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
