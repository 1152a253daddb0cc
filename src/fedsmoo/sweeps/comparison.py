"""What a comparison of methods found: a row for each method over its seeds, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.metrics.quantity import ACCURACY, Quantity
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.objects import PREFIX
from fedsmoo.runs.origin.samples import data_label, say_data_differs
from fedsmoo.runs.record import TEN, frame_row, scores_of
from fedsmoo.runs.results.html import aligned
from fedsmoo.runs.results.html import table as html_table
from fedsmoo.runs.results.loaded import result_in
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.storage.reader import StoredRun
from fedsmoo.sweeps.paired import (
    Histories,
    Row,
    common_target,
    leading_metric,
    make_rows,
    missing_scores_note,
    personal_cells,
    row_cells,
    verdict,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedsmoo.sweeps.queue import Outcome


@dataclass(frozen=True)
class Comparison:
    """The finished runs of a comparison and their table; some may have failed, which the count of seeds says."""

    config: Config  # of the first run: what all have in common is in it
    runs: Mapping[str, Mapping[int, StoredRun | Result]]  # finished, by method and seed
    outcome: Outcome
    out: Path | None  # None: they are in memory

    @cached_property
    def histories(self) -> dict[str, Histories]:
        """The rounds of every run, by method and seed."""
        return {label: {seed: run.history for seed, run in mine.items()} for label, mine in self.runs.items()}

    @cached_property
    def target(self) -> float:
        """The accuracy, or other score, that rounds and bytes are counted to: the config's, or one fair to all."""
        return common_target(self.histories) if self.config.target is None else self.config.target

    @property
    def lead(self) -> Quantity:
        """The metric that leads."""
        return leading_metric(self.histories)

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each method; none if no run has finished."""
        return make_rows(self.histories, self.target) if self.runs else []

    @property
    def winner(self) -> Row | None:
        """The best row, if its lead over all others is more than chance; none where some share no seed with it."""
        best = [row for row in self.rows if row.behind is None]
        others = [row.behind for row in self.rows if row.behind is not None]
        ahead = all(each.clear and (each.mean < 0) == self.lead.higher for each in others)
        return best[0] if len(best) == 1 and ahead else None

    @property
    def frame(self) -> pd.DataFrame:
        """All rounds, one row a round of a run: its method, its seed, and what it measured."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"method": label, "seed": seed, **frame_row(record)}
                for label, mine in self.histories.items()
                for seed, history in mine.items()
                for record in history
            ]
        )

    @property
    def data(self) -> str:
        """The data set, named by its content where that is not what its name says."""
        one = next(run for mine in self.runs.values() for run in mine.values())
        name = self.config.dataset.removeprefix(PREFIX)
        return data_label(name, one.started) if isinstance(one, StoredRun) else name

    @property
    def curves(self) -> Path:
        """The picture of the leading metric over rounds, of runs in folders."""
        if self.out is None:
            raise FedsmooError("the runs of this comparison are in memory, and so is no picture: use plot()")
        return self.out / "curves.png"

    def plot(self, metric: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a number over the rounds, a line for each method; returns the matplotlib axes."""
        from fedsmoo.runs.results.curves import plot  # late: matplotlib takes a while to import

        return plot(self, metric, ax)

    def result(self, method: str, seed: int | None = None) -> Result:
        """Return the result of a method's run, by its label in the table; of its first seed where none is named."""
        if method not in self.runs:
            raise unknown("method of this comparison", method, self.runs)
        mine = self.runs[method]
        seed = next(iter(mine)) if seed is None else seed
        if seed not in mine:
            raise FedsmooError(f"{method} has no finished run of seed {seed!r}: there are {', '.join(map(str, mine))}")
        run = mine[seed]
        return run if isinstance(run, Result) else result_in(run.path)

    def draw(self) -> Path:
        """Draw the picture; returns its file."""
        from fedsmoo.runs.results.curves import accuracy_curves  # late: matplotlib takes a while to import

        division = self.config.partition if self.config.split is None else f"split {Path(self.config.split).name}"
        lines = {label: list(mine.values()) for label, mine in self.histories.items()}
        accuracy_curves(lines, self.curves, f"{self.data}, {division}")
        return self.curves

    @property
    def ends(self) -> str:
        """The evaluations that a score at the end is a mean of, in words."""
        every = [history for mine in self.histories.values() for history in mine.values()]
        counts = {min(TEN, len(scores_of(history))) for history in every}
        return "last ten" if counts == {TEN} else f"last {counts.pop()}" if len(counts) == 1 else "last ten or all"

    @property
    def table(self) -> list[str]:
        """The table in aligned lines, the header first."""
        return aligned(self.words)

    @property
    def words(self) -> list[list[str]]:
        """The table's cells, the header first."""
        goal = self.lead.goal(self.target)
        header = ["method", "n", self.heading, "− best", f"rounds to {goal}", f"sent to {goal}", "seconds"]
        lines = [header, *map(row_cells, self.rows)]
        if any(row.personal is not None for row in self.rows):
            served = [personal_cells(row) for row in self.rows]
            unit = " (%)" if self.lead.percent else ""
            lines = [a + b for a, b in zip(lines, [[f"personal{unit}", f"worst tenth{unit}"], *served], strict=True)]
        return lines

    @property
    def heading(self) -> str:
        """What the column of scores is called: ``last ten (%)``, of another metric ``mean squared error, last ten``."""
        return f"{self.ends} (%)" if self.lead == ACCURACY else f"{self.lead.axis.removeprefix('test ')}, {self.ends}"

    @property
    def notes(self) -> list[str]:
        """What the columns of the table mean, and what can be said of the differences."""
        where = "on the test set" if self.lead.part else "(there is no test part)"
        better = "" if self.lead.higher else "; lower is better"
        mean = f"mean of the {self.ends} evaluations {where}, ± its standard deviation over n seeds{better}"
        lines = [f"{self.heading}: {mean}"]
        if said := verdict(self.rows):
            lines.append(f"− best: {said}")
        lines += [*missing_scores_note(self.histories), *say_data_differs(self.runs)]
        return [*lines, *([f"data: {self.data}"] if self.data != self.config.dataset else [])]

    @property
    def text(self) -> str:
        """The table and its notes; empty if no run has finished."""
        return "\n".join([*self.table, *self.notes]) + "\n" if self.runs else ""

    def __str__(self) -> str:
        """The table, and which runs are not in it."""
        failed = [f"failed: {folder.name}: {why}\n" for folder, why in self.outcome.failed.items()]
        left = [f"not finished: {folder.name}\n" for folder in self.outcome.left]
        return "".join([self.text, *failed, *left])

    __repr__ = __str__  # what a prompt shows

    def _repr_html_(self) -> str:
        """Return the table for a notebook, the best row bold where its lead over all others is more than chance."""
        if not self.runs:
            return f"<pre>{escape(str(self))}</pre>"
        header, *rows = self.words
        best = None if self.winner is None else self.rows.index(self.winner)
        rest = str(self).removeprefix("".join(f"{line}\n" for line in self.table))
        return html_table(header, rows, bold=best) + "".join(f"<div>{escape(line)}</div>" for line in rest.splitlines())
