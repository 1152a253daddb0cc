"""Measured runs by method and column, and what a run comes to in one number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedsmoo.metrics.average import deviation, mean
from fedsmoo.runs.record import TEN, best_validated, last_mean, last_personal
from fedsmoo.runs.traffic import Reached, first_reached
from fedsmoo.sweeps.grid import Sweep
from fedsmoo.sweeps.paired import seeds_in_words
from fedsmoo.sweeps.results import Measured

Found = dict[str, Measured]


class Grid:
    """The measured runs of a sweep by method and column, a list over seeds."""

    def __init__(self, sweep: Sweep, found: Found) -> None:
        self.methods = list(dict.fromkeys(c.method for c in sweep.cells))
        self.columns = list(dict.fromkeys(c.column for c in sweep.cells))
        self.notes: list[str] = list(sweep.about.get("notes", []))
        self.runs: dict[tuple[str, str], list[Measured]] = {}
        self.rounds = sorted({c.config.rounds for c in sweep.cells})
        for cell in sweep.cells:
            runs = self.runs.setdefault((cell.method, cell.column), [])
            if cell.identity in found and found[cell.identity].scores:
                runs.append(found[cell.identity])
            elif cell.identity in found:
                self.notes.append(f"{cell.name} has no evaluated round: it is left out.")
        self.most = max(map(len, self.runs.values()), default=0)  # seeds of the cell that has most

    def __getitem__(self, key: tuple[str, str]) -> list[Measured]:
        return self.runs.get(key, [])

    def footnotes(self) -> list[str]:
        """Return lines on what made the numbers: hardware, versions, commits, seeds."""
        runs = [r for each in self.runs.values() for r in each]
        if not runs:
            return [*self.notes, "Nothing measured yet."]
        made_by = [each for r in runs for each in sessions(r.facts)]
        devices = sorted({str(each.get("device", "?")) for each in made_by})
        torches = sorted({str((each.get("versions") or {}).get("torch", "?")) for each in made_by})
        commits = sorted({revision(each) for each in made_by if each.get("commit")})
        coarse = [r for r in runs if r.facts.get("device_type") != "cpu" or r.facts.get("products") == "bf16"]
        precisions = sorted({r.config.precision for r in coarse})
        made = f"Measured on {', '.join(devices)} with torch {', '.join(torches)}"
        made += f", products in {', '.join(precisions)}" if precisions else ""
        made += f", commit {', '.join(commits)}" if commits else ""
        return [*self.notes, *unrecorded(runs), f"{made}; {self.seeds()}."]

    def seeds(self) -> str:
        """Name the seeds of most cells, then those of every row, or cells of a row, that have others."""
        has = {key: tuple(sorted({r.config.seed for r in runs})) for key, runs in self.runs.items() if runs}
        usual = Counter(has.values()).most_common(1)[0][0]
        words = [seeds_in_words(usual)]
        for method in self.methods:
            mine = dict[tuple[int, ...], list[str]]()
            for column in self.columns:
                if (method, column) in has:
                    mine.setdefault(has[method, column], []).append(column)
            for seeds, columns in mine.items():
                if seeds != usual:
                    where = "" if len(mine) == 1 else f" ({some(columns, len(self.columns))})"
                    words.append(f"{method}{where} {seeds_in_words(seeds)}")
        return "; ".join(words)

    def by_seed(self, key: tuple[str, str], measure: Callable[[Measured], float]) -> dict[int, float]:
        """Return a number for each run of a cell, by seed."""
        return {r.config.seed: measure(r) for r in self[key]}

    def spread(self, values: Sequence[float], digits: int = 2) -> str:
        """Return mean and deviation; several seeds, but fewer than another cell has, are counted in brackets.

        For tables that have no column of counts.
        """
        fewer = f" ({len(values)} seeds)" if 1 < len(values) < self.most else ""
        return spread(values, digits) + fewer


def some(columns: Sequence[str], of: int) -> str:
    """Name columns of a table that has so many, or count them where they are more than two.

    >>> some(["r 0.1"], 3), some(["a", "b", "c"], 16)
    ('r 0.1', '3 of 16 columns')
    """
    return ", ".join(columns) if len(columns) <= 2 else f"{len(columns)} of {of} columns"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean, and the standard deviation over seeds where there are several; blank without values.

    >>> spread([71.0]), spread([70.0, 71.0, 72.0])
    ('71.00', '71.00 ± 1.00')
    """
    if not values:
        return ""
    around = f" ± {deviation(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{around}"


def hits(runs: Sequence[Measured], target: float) -> list[Reached]:
    """Return when runs first reached a target accuracy, of those that did."""
    return [hit for r in runs if (hit := first_reached(r.history, target)) is not None]


def spent_to(runs: Sequence[Measured], target: float, write: Callable[[list[Reached]], str]) -> str:
    """Write what the runs that reached a target spent, and how many of all they are where some did not.

    A dash if none did; blank without runs.
    """
    found = hits(runs, target)
    some = f" ({len(found)} of {len(runs)})" if len(found) < len(runs) else ""
    return write(found) + some if found else "-" if runs else ""


def rounds_to(runs: Sequence[Measured], target: float) -> str:
    """Return the mean and deviation of the round in which runs first reached a target: see :func:`spent_to`."""
    return spent_to(runs, target, lambda found: spread([h.round for h in found], 0))


def bytes_beside(runs: Sequence[Measured], others: Sequence[Measured], target: float) -> float | None:
    """Return the bytes to a target relative to those of other runs, over the seeds with which both got there."""
    one, other = (
        {r.config.seed: hit.bytes for r in each if (hit := first_reached(r.history, target))} for each in (runs, others)
    )
    common = sorted(one.keys() & other.keys())
    return sum(one[s] for s in common) / sum(other[s] for s in common) if common else None


def seeds_of(runs: Sequence[Measured]) -> str:
    """Count seeds, for a column ``n``; blank without runs."""
    return str(len(runs)) if runs else ""


def last(run: Measured) -> float:
    """Return the accuracy of the last round, in per cent; or another metric that leads."""
    return run.lead.factor * run.scores[-1]


def last_ten(run: Measured) -> float:
    """Return the mean accuracy of the last ten evaluated rounds, or of all if they are fewer, in per cent.

    NaN if one of them has none, as of a model that diverged.
    """
    return run.lead.factor * last_mean(run.scores)


def mean_of_last(runs: Sequence[Measured]) -> str:
    """Return the heading over ``last_ten`` of these runs."""
    counts = {min(TEN, len(r.scores)) for r in runs} or {TEN}
    if len(counts) > 1:
        return "last ten (or all)"
    return "last ten" if counts == {TEN} else f"last {counts.pop()}"


def validated(run: Measured) -> float | None:
    """Return the test accuracy of the round that was best on the samples held out, in per cent; None: none were."""
    chosen = best_validated(run.history) if "validation_accuracy" in run.curve else None
    return None if chosen is None or chosen.score is None else run.lead.factor * chosen.score


def personal(run: Measured) -> tuple[float, float] | None:
    """Return the mean over clients and the worst tenth of personal models at the end, in per cent; None: none.

    NaN where there were some, but those of the last evaluated round diverged.
    """
    if "personal_accuracy" not in run.curve:
        return None
    found, factor = last_personal(run.history), run.lead.factor
    mean = found.get("personal_accuracy", found.get("personal_score", math.nan))
    return factor * mean, factor * found.get("personal_worst_tenth", math.nan)


def best(run: Measured) -> float:
    """Return the accuracy of the best round on the test part, in per cent, which the paper reports.

    A maximum over the test set is too high for any method, and higher for one that jumps: it stands beside the paper's
    and compares with nothing else.
    """
    top = run.lead.best(run.scores)
    return math.nan if top is None else run.lead.factor * top


def signed(ours: Sequence[float], paper: float | None, digits: int = 2) -> str:
    """Return the mean of ours less the paper's, with its sign; blank if one of them is missing."""
    return "" if not ours or paper is None else f"{mean(ours) - paper:+.{digits}f}"


def number_text(value: Any, form: str = "g") -> str:
    """Return a number as text; words as they are, and nothing for none."""
    return "" if value is None else str(value) if isinstance(value, str) else f"{value:{form}}"


def revision(facts: Mapping[str, Any]) -> str:
    """Return the commit in a few digits, and whether files were edited since.

    >>> revision({"commit": "0123456789abcdef", "dirty": True})
    '0123456789+dirty'
    """
    return str(facts["commit"])[:10] + ("+dirty" if facts.get("dirty") else "")


def sessions(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what is known of all who made a run: of those who began or resumed it, besides who finished it."""
    others = facts.get("sessions") or []
    return [facts, *(each for each in others if isinstance(each, dict) and isinstance(each.get("versions"), dict))]


def unrecorded(runs: Sequence[Measured]) -> list[str]:
    """Return a line that counts the runs made before results kept a fingerprint of their data, if there are any."""
    bare = [r for r in runs if "data" not in r.facts]
    many = "all" if len(bare) == len(runs) else f"{len(bare)} of {len(runs)}"
    return [f"Data not recorded: {many} runs, made before results kept a fingerprint of their data."] if bare else []
