"""Printing for people: tables, progress, and plain text when nobody looks at a terminal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.core.untrusted import lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from fedsmoo.runs.progress import Lines
    from fedsmoo.runs.record import Record


def console() -> Console:
    """Return the console; rich itself drops colours when the output is piped or NO_COLOR is set."""
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, 120))


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print warnings meant for people in one line, as errors are; others as Python does."""
    plainly = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, FedsmooWarning):
            sys.stderr.write(f"fedsmoo: {message}\n")
        else:
            plainly(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def print_above(bar: Progress, line: str) -> None:
    """Print a line above a progress bar, harmlessly."""
    bar.console.print(lines(line), markup=False, soft_wrap=True)


class Moving:
    """How far rounds are: a bar, or now and then a line where standard error is no terminal."""

    def __init__(self, bar: Progress, task: TaskID, log: Lines) -> None:
        self.bar, self.task, self.log = bar, task, log
        self.tested: str | None = None  # how well the last model did that was evaluated

    def move(self, record: Record, label: str | None = None) -> None:
        """Count a round."""
        from fedsmoo.runs.progress import standing, tested

        words = standing(record, self.tested)
        self.tested = tested(record) or self.tested
        self.bar.update(self.task, advance=1, description=label, state="  ".join(words))
        if self.bar.disable:
            self.log.moved([label, *words] if label else words)

    def skip(self, rounds: int, label: str | None = None) -> None:
        """Count rounds that are found done, of a run that goes on now."""
        self.tested = None
        self.bar.update(self.task, advance=rounds, description=label)
        self.log.skip(rounds)

    @property
    def say(self) -> Callable[[str], None]:
        """What prints a line, above the bar."""
        return self.log.say


@contextmanager
def progress(label: str, rounds: int, done: int = 0, last: bool = True) -> Iterator[Moving]:
    """Show how far rounds are to a person; ``last``: where that is in lines, the last round has one in any case."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fedsmoo.runs.progress import Lines

    bar = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(label, total=rounds, completed=done, state="")
        yield Moving(bar, task, Lines(rounds, done, partial(print_above, bar), last))


def counted(count: int, thing: str) -> str:
    """Count things in words: ``"1 run"``, ``"2 runs"``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def at_the_end(summary: dict[str, Any]) -> str:
    """Say the accuracy at the end: ``"81.20% (mean of the last ten evaluations; the last 80.90%)"``."""
    count, last = min(10, summary["evaluations"]), f"{100 * summary['test_accuracy']:.2f}%"
    if count < 2:
        return last
    words = f"mean of the last {'ten' if count == 10 else count} evaluations"
    return f"{100 * summary['test_accuracy_last10']:.2f}% ({words}; the last {last})"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> Table:
    """Make a table with the first column to the left, numbers to the right, and the best row bold."""
    from rich.table import Table

    out = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        out.add_column(name, justify="left" if k == 0 else "right", no_wrap=True)
    for k, row in enumerate(rows):
        out.add_row(*row, style="bold" if k == best else "")
    return out
