"""What a comparison of methods found: a row for each method over its seeds, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.metrics.average import deviation, mean
from fedsmoo.metrics.quantity import ACCURACY, Quantity
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import data_label, unlike_data
from fedsmoo.runs.origin.objects import PREFIX
from fedsmoo.runs.record import Record, frame_row, last_personal, last_score, lead_of, scores_of
from fedsmoo.runs.results.html import aligned
from fedsmoo.runs.results.html import table as html_table
from fedsmoo.runs.results.loaded import result_in
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.storage.reader import StoredRun
from fedsmoo.runs.traffic import human_bytes, reached
from fedsmoo.sweeps.paired import Paired, paired, ranked, verdict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedsmoo.sweeps.queue import Outcome

TEN = 10  # evaluations in a mean at the end of a run
Histories = dict[int, list[Record]]  # of one method, by seed


@dataclass(frozen=True)
class Row:
    """One method over its seeds: mean and spread; ``None`` where no seed reached the target."""

    method: str
    seeds: int
    score: float  # of the metric that leads: mean of the last ten evaluations, then over seeds
    score_std: float | None  # over seeds; None with one seed
    behind: Paired | None  # less the best method, on the seeds that both have; None: it is the best, or they share none
    rounds: float | None
    bytes: float | None
    seconds: float  # of local training, per run
    reached: int  # how many seeds reached the target
    personal: float | None = None  # mean over clients of personal models at the end, then over seeds
    worst_tenth: float | None = None  # of them, of the worst tenth of clients
    lead: Quantity = ACCURACY

    @property
    def accuracy(self) -> float:
        """The score, where that is an accuracy."""
        return self.score

    @property
    def accuracy_std(self) -> float | None:
        """Its deviation over seeds."""
        return self.score_std


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
        return lead_in(self.histories)

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each method; none if no run has finished."""
        return compared(self.histories, self.target) if self.runs else []

    @property
    def winner(self) -> Row | None:
        """The best row, if its lead over all others is more than chance."""
        best = [row for row in self.rows if row.behind is None]
        return best[0] if best and all(row.behind.clear for row in self.rows if row.behind is not None) else None

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
        lines = [header, *map(cells, self.rows)]
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
        lines += unlike_data(self.runs)
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


def row(method: str, runs: Histories, target: float, best: Histories | None = None) -> Row:
    """Make a row from the histories of one method, and those of the best one to compare with."""
    scores = {seed: last_ten(h) for seed, h in runs.items()}
    hits = [hit for h in runs.values() if (hit := reached(h, target)) is not None]
    return Row(
        method,
        len(runs),
        mean(scores.values()),
        deviation(scores.values()) if len(runs) > 1 else None,
        None if best is None else paired(scores, {seed: last_ten(h) for seed, h in best.items()}),
        mean(h.round for h in hits) if hits else None,
        mean(h.bytes for h in hits) if hits else None,
        mean(sum(r.seconds_train for r in h) for h in runs.values()),
        len(hits),
        *served_by(runs),
        lead_in({method: runs}),
    )


def lead_in(runs: dict[str, Histories]) -> Quantity:
    """Return the metric that leads in the runs of a comparison, which all have the same."""
    return next((lead_of(h) for mine in runs.values() for h in mine.values()), ACCURACY)


def served_by(runs: Histories) -> tuple[float | None, float | None]:
    """Return the mean over clients and the worst tenth of personal models at the end; ``None`` where a run has none."""
    found = [last_personal(h) for h in runs.values()]
    if not all("personal_worst_tenth" in f for f in found):
        return None, None
    means = [f.get("personal_accuracy", f.get("personal_score")) for f in found]
    return mean(m for m in means if m is not None), mean(f["personal_worst_tenth"] for f in found)


def last_ten(history: Sequence[Record]) -> float:
    """Return the mean score of the last ten evaluations, or of all if they are fewer."""
    last_score(history)  # which refuses a history that has none
    return mean(scores_of(history)[-TEN:])


def compared(runs: dict[str, Histories], target: float) -> list[Row]:
    """Make a row for each method; all but the best, by the seeds that all have, are compared with that one."""
    ends = {label: {seed: last_ten(h) for seed, h in mine.items()} for label, mine in runs.items()}
    order = ranked(ends, lead_in(runs).higher)
    best = order[0] if order else None
    return [row(label, mine, target, runs[best] if best not in (None, label) else None) for label, mine in runs.items()]


def common_target(runs: dict[str, Histories]) -> float:
    """Return a target that is fair to all: nine tenths of the best method's accuracy at the end, down to a per cent.

    Of another metric it is a tenth worse than the best method's, in two digits.
    """
    lead = lead_in(runs)
    best = max((mean(last_ten(h) for h in mine.values()) for mine in runs.values()), key=lead.key)
    return lead.nearly(best)


def cells(row: Row) -> list[str]:
    """Return the row as text: seeds, score, how far behind the best, rounds, bytes, seconds."""

    def optional(value: float | None, form: Any) -> str:
        return "-" if value is None else form(value)

    number = row.lead.number
    spread = "" if row.score_std is None else f" ± {number(row.score_std)}"
    partly = "" if row.rounds is None or row.reached == row.seeds else f" ({row.reached}/{row.seeds})"
    half = "" if row.behind is None or row.behind.half is None else f" ± {number(row.behind.half)}"
    return [
        row.method,
        str(row.seeds),
        f"{number(row.score)}{spread}",
        "" if row.behind is None else f"{number(row.behind.mean, '+')}{half}",
        optional(row.rounds, lambda v: f"{v:.1f}".removesuffix(".0")) + partly,
        optional(row.bytes, human_bytes),
        f"{row.seconds:.1f}",
    ]


def personal_cells(row: Row) -> list[str]:
    """Return what a row says of personal models, as text."""
    return ["-" if v is None else row.lead.number(v) for v in (row.personal, row.worst_tenth)]
