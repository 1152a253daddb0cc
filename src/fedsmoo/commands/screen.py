"""Tables of text in a terminal of any width, and the line on what to type next."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedsmoo.commands.console import console, print_paragraph
from fedsmoo.core import untrusted
from fedsmoo.runs.origin.typed import command

if TYPE_CHECKING:
    from fedsmoo.paper.render import Table

LEAST = 24  # characters of a name, at least


_parts: list[bool] = []  # commands that are being carried out as parts of another


@contextmanager
def as_part_of_another() -> Iterator[None]:
    """Within this, commands are parts of another one, which alone says what to type next."""
    _parts.append(True)
    try:
        yield
    finally:
        _parts.pop()


def next_step(words: str, *places: Path | str) -> None:
    """Say what to type next: a command, and the folders it is about; beside the output, which may be piped."""
    if _parts:
        return
    said = " ".join([words, *(shlex.quote(str(place)) for place in places)])
    sys.stderr.write(f"next: {untrusted.text(said, len(said))}\n")


def command_without(flag: str) -> str:
    """Return the command line as it was typed, without a flag.

    >>> from fedsmoo.runs.origin.typed import typed
    >>> with typed(["sweep", "grid.toml", "--dry-run"]):
    ...     command_without("--dry-run")
    'fedsmoo sweep grid.toml'
    """
    return " ".join(word for word in command().split() if word != flag)


def wrap_words(said: str, width: int | None = None) -> str:
    """Break the lines of an error between words where standard error is a terminal, or at a width.

    >>> wrap_words("fedsmoo: unknown model", 16)
    'fedsmoo: unknown\\nmodel'
    """
    if width is None:
        if not sys.stderr.isatty():
            return said
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(line) for line in said.split("\n"))


def cut_middle(path: str, room: int) -> str:
    """Cut the middle out of a path.

    >>> cut_middle("sweep/fedavg-digits-seed0-a5cbcaca", 24)
    'sweep/f…s-seed0-a5cbcaca'
    """
    head = room // 3
    return path if len(path) <= room else f"{path[: head - 1]}…{path[-(room - head) :]}"


def line_with_name(before: str, name: str, after: str = "") -> str:
    """Return a line on a run for standard error; in a terminal that is too narrow its name is cut."""
    from rich.console import Console

    out = Console(stderr=True)
    room = max(out.width - len(before) - len(after), LEAST) if out.is_terminal else len(name)
    return f"{before}{cut_middle(name, room)}{after}"


def print_table(table: Table, whole: str = "") -> None:
    """Print a table; in a terminal that is too narrow its columns go on below, the first of them again.

    Args:
        table: what to print.
        whole: where names of the first column that are cut can be had whole; without it none is cut.
    """
    from fedsmoo.paper.render import text

    out = console()
    if not out.is_terminal:
        print(text(table), end="")
        return
    notes = list(table.notes)
    if whole and (cut := with_short_names(table, out.width)) is not table:
        table = cut
        notes.append(f"names are cut here: {whole} has them whole")
    for part in fold_columns(dataclasses.replace(table, notes=[]), out.width):
        print(text(part), end="")
    for note in notes:
        print_paragraph(out, untrusted.text(note, len(note)))


def widths_of(table: Table) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]


def with_short_names(table: Table, width: int) -> Table:
    """Cut the names of a table that is too wide in their middle: their ends tell runs apart."""
    first, *rest = widths_of(table)
    room = max(width - sum(n + 2 for n in rest), LEAST)
    if first <= room:
        return table
    return dataclasses.replace(table, rows=[[cut_middle(name, room), *cells] for name, *cells in table.rows])


def fold_columns(table: Table, width: int) -> Iterator[Table]:
    """Yield a table in parts that are no wider than a terminal, where that can be: each has the first column."""
    first, *rest = widths_of(table)
    title, chosen, used = table.title, [0], first
    for k, n in enumerate(rest, 1):
        if used + n + 2 > width and len(chosen) > 1:
            yield select_columns(table, title, chosen)
            title, chosen, used = "", [0], first
        chosen.append(k)
        used += n + 2
    yield select_columns(table, title, chosen)


def select_columns(table: Table, title: str, chosen: list[int]) -> Table:
    """Return some columns of a table."""
    rows = [[cells[k] for k in chosen] for cells in table.rows]
    return dataclasses.replace(table, title=title, header=[table.header[k] for k in chosen], rows=rows)
