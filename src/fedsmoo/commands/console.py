"""Printing for people: tables, progress, and plain text when nobody looks at a terminal."""

from __future__ import annotations

import codecs
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from fedsmoo.core.errors import FedsmooWarning

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedsmoo.runs.watch.display import Moving


# What tables and help are written with, for a screen or file without it.
PLAIN = {"\u2212": "-", "\u2013": "-", "\u00b1": "+-", "\u2026": "...", "\u00d7": "x", "\u2192": "->"}


def in_plain_letters(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace what an encoding lacks: signs by ASCII, other characters by their codes."""
    if isinstance(error, UnicodeEncodeError) and (sign := PLAIN.get(error.object[error.start])):
        return sign, error.start + 1
    return codecs.backslashreplace_errors(error)


def write_any_letter() -> None:
    """Let standard output take every character: one that its encoding lacks is replaced, and ends no command."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and "utf" not in out.encoding.lower():
        codecs.register_error("fedsmoo", in_plain_letters)
        out.reconfigure(errors="fedsmoo")


def console() -> Console:
    """Return the console; rich itself drops colours when the output is piped or NO_COLOR is set."""
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, 120))


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print warnings meant for people in one line, as errors are, each text once; others as Python does."""
    plainly, said = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, FedsmooWarning):
            if str(message) not in said:
                sys.stderr.write(f"fedsmoo: {message}\n")
            said.add(str(message))
        else:
            plainly(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def progress(label: str, rounds: int, done: int = 0, last: bool = True) -> AbstractContextManager[Moving]:
    """Show how far rounds are to a person, in a terminal or in lines; ``last`` as in :func:`display`."""
    from fedsmoo.runs.watch.display import display

    return display(label, rounds, done, last, "bar" if sys.stderr.isatty() else "lines")


def counted(count: int, thing: str) -> str:
    """Count things in words: ``"1 run"``, ``"2 runs"``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def end_in_words(summary: dict[str, Any]) -> str:
    """Say the score at the end: ``"81.20% (mean of the last ten evaluations; the last 80.90%)"``."""
    from fedsmoo.runs.results.summary import read_ending

    end, count = read_ending(summary), min(10, summary["evaluations"])
    last = "none" if end.last is None else end.lead.text(end.last)
    if end.lacking:
        return f"no mean: {end.lacking}; the last {last}"
    if end.last is None or end.last_ten is None:
        return "not evaluated"
    if count < 2:
        return last
    words = f"mean of the last {'ten' if count == 10 else count} evaluations"
    return f"{end.lead.text(end.last_ten)} ({words}; the last {last})"


def end_score(summary: dict[str, Any]) -> str:
    """Return the mean of the last ten evaluations: ``"81.20%"``."""
    from fedsmoo.runs.results.summary import read_ending

    end = read_ending(summary)
    return end.lacking or ("not evaluated" if end.last_ten is None else end.lead.text(end.last_ten))


def print_hanging(out: Console, lead: str, words: str, style: str = "") -> None:
    """Print words behind a lead; in a terminal lines that they do not fit into go on below their beginning.

    Args:
        out: the console.
        lead: what stands before them, in Rich's markup.
        words: plain text.
        style: Rich's style of the words.
    """
    from rich.text import Text

    before, text = Text.from_markup(lead), Text(words, style)
    room = max(out.width - before.cell_len, 24)
    for k, line in enumerate(text.wrap(out, room) if out.is_terminal else [text]):
        line.rstrip()
        out.print((before if k == 0 else Text(" " * before.cell_len)) + line, soft_wrap=True)


def print_paragraph(out: Console, words: str) -> None:
    """Print a paragraph: between words a terminal's width breaks it, and nothing else does."""
    out.print(words, markup=False, soft_wrap=not out.is_terminal)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> Table:
    """Make a table with the first column to the left, numbers to the right, and the best row bold."""
    from rich.table import Table

    out = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        out.add_column(name, justify="left" if k == 0 else "right", no_wrap=True)
    for k, row in enumerate(rows):
        out.add_row(*row, style="bold" if k == best else "")
    return out
