"""Tables in Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence


def cell(text: object) -> str:
    """Return a text as it may stand in a table: on one line, its bars and angle brackets taken literally."""
    return html.escape(" ".join(str(text).split()), quote=False).replace("|", "\\|")


def code(text: object) -> str:
    """Return a text in the letters of code, as it may stand in a table; nothing stays nothing."""
    words = " ".join(str(text).split()).replace("|", "\\|")
    return f"`{words}`" if words else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Return a table of cells that are Markdown already; the last columns may be numbers."""
    rule = "---|" * (len(header) - numbers) + "---:|" * numbers
    lines = ["| " + " | ".join(header) + " |", f"|{rule}"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
