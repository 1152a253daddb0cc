"""Show how far rounds are: a bar in a terminal, a widget in a notebook, lines in a file, or a program's own log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedsmoo.core.errors import brief, unknown
from fedsmoo.core.untrusted import lines
from fedsmoo.runs.origin.typed import ipython
from fedsmoo.runs.progress import ProgressLines, round_in_words, test_in_words
from fedsmoo.runs.record import Record

LOG = logging.getLogger("fedsmoo")
KINDS = ("auto", "bar", "widget", "lines", "log")

Update = Callable[[int, str | None, list[str]], Any]  # rounds done, a new label, how well the last one went


class Moving:
    """Counts rounds and tells whatever shows them."""

    def __init__(self, done: int, update: Update, say: Callable[[str], Any], skipped: Callable[[int], Any]) -> None:
        self.done, self.update, self.say, self.skipped = done, update, say, skipped
        self.tested: str | None = None  # how well the last model did that was evaluated

    def move(self, record: Record, label: str | None = None) -> None:
        """Count a round."""
        words = round_in_words(record, self.tested)
        self.tested = test_in_words(record) or self.tested
        self.done += 1
        self.update(self.done, label, words)

    def skip(self, rounds: int, label: str | None = None) -> None:
        """Count rounds that are found done, of a run that goes on now."""
        self.tested = None
        self.done += rounds
        self.skipped(rounds)


def kind_of(progress: bool | str | None) -> str:
    """Return how progress is shown: what ``"auto"`` and ``True`` come to here; ``""``: not at all.

    Where there is neither a notebook nor a terminal, ``"auto"`` is the log ``fedsmoo``, which is silent until a program
    turns logging on; ``True`` is lines on standard error.
    """
    if progress is False or progress is None:
        return ""
    if progress in (True, "auto"):
        nobody = "lines" if progress is True else "log"
        return "widget" if in_notebook() else "bar" if sys.stderr.isatty() else nobody
    if progress not in KINDS:
        raise unknown("progress", progress if isinstance(progress, str) else brief(progress), [*KINDS, "True", "False"])
    return str(progress)


def in_notebook() -> bool:
    """Return whether this is a notebook: an IPython with a kernel, not one in a terminal."""
    shell = ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def display(
    label: str, rounds: int, done: int = 0, last: bool = True, progress: bool | str | None = True
) -> Iterator[Moving]:
    """Show how far rounds are.

    Args:
        label: what is going on.
        rounds: how many there are, of all runs.
        done: how many are done.
        last: whether the last round has a line in any case, where progress is lines.
        progress: how to show it: see :func:`kind_of`.
    """
    screens = {"bar": in_terminal, "widget": in_widget, "lines": in_lines, "log": in_log, "": nowhere}
    with screens[kind_of(progress)](label, rounds, done, last) as moving:
        yield moving


@contextmanager
def nowhere(label: str, rounds: int, done: int, last: bool) -> Iterator[Moving]:
    yield Moving(done, lambda *_: None, lambda _: None, lambda _: None)


@contextmanager
def in_terminal(label: str, rounds: int, done: int, last: bool) -> Iterator[Moving]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=rounds, completed=done, state="")
        yield Moving(
            done,
            lambda at, label, words: bar.update(task, completed=at, description=label, state="  ".join(words)),
            lambda line: bar.console.print(lines(line), markup=False, soft_wrap=True),
            lambda more: bar.update(task, advance=more),
        )


@contextmanager
def in_lines(label: str, rounds: int, done: int, last: bool) -> Iterator[Moving]:
    def say(line: str) -> None:
        sys.stderr.write(f"{lines(line)}\n")

    shown = ProgressLines(rounds, done, say, last)
    yield Moving(done, lambda _, label, words: shown.moved([label, *words] if label else words), say, shown.skip)


@contextmanager
def in_log(label: str, rounds: int, done: int, last: bool) -> Iterator[Moving]:
    def update(at: int, said: str | None, words: list[str]) -> None:
        LOG.info("%s: round %d of %d: %s", said or label, at, rounds, ", ".join(words))

    yield Moving(done, update, LOG.info, lambda _: None)


@contextmanager
def in_widget(label: str, rounds: int, done: int, last: bool) -> Iterator[Moving]:
    """Show a bar below the cell, which goes away at the end; without ``ipywidgets``, lines."""
    try:
        from IPython.display import display as show
        from ipywidgets import HTML, HBox, IntProgress
    except ImportError:
        with in_lines(label, rounds, done, last) as moving:
            yield moving
        return
    bar, text = IntProgress(value=done, max=rounds, description=label), HTML()
    box = HBox([bar, text])
    show(box)

    def update(at: int, said: str | None, words: list[str]) -> None:
        from html import escape

        bar.value, bar.description = at, said or bar.description
        text.value = escape("  ".join([f"{at}/{rounds}", *words]))

    def advance(more: int) -> None:
        bar.value += more

    try:
        yield Moving(done, update, print, advance)
    finally:
        box.close()
