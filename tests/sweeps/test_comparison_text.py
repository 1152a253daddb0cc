"""The row of a comparison as text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsmoo.metrics.quantity import ACCURACY
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import Record
from fedsmoo.sweeps.comparison import Comparison
from fedsmoo.sweeps.paired import make_row, row_cells
from fedsmoo.sweeps.queue import Outcome


def history(reached: int) -> list[Record]:
    """Three rounds, accurate from one of them on."""
    return [Record(t, 0.9 if t >= reached else 0.1, 1.0, 1.0, 0.0, 0.1, [0], 10, 10, 0.1, 0.1) for t in (1, 2, 3)]


@pytest.mark.parametrize(("reached", "shown"), [((1, 2), "1.5"), ((2, 2), "2"), ((1, 2, 2), "1.7")])
def test_a_mean_of_rounds_is_not_rounded_to_one(reached: tuple[int, ...], shown: str) -> None:
    runs = {seed: history(t) for seed, t in enumerate(reached)}
    assert row_cells(make_row("fedavg", runs, 0.5))[4] == shown


def test_nobody_wins_whose_lead_may_be_chance() -> None:
    """Whichever row it is that may be as good."""
    best, clear, near = (
        SimpleNamespace(behind=None),
        *(SimpleNamespace(behind=SimpleNamespace(clear=c, mean=-0.1)) for c in (True, False)),
    )
    for rows, winner in (([near, best], None), ([best, clear, near], None), ([clear, best], best), ([best], best)):
        assert Comparison.winner.fget(SimpleNamespace(rows=rows, lead=ACCURACY)) is winner


def ended(*scores: float, first: int = 0) -> dict[int, list[Record]]:
    """Runs of one round each, by seed."""
    return {s: [Record(1, v, 1.0, 1.0, 0.0, 0.1, [0], 10, 10, 0.1, 0.1)] for s, v in enumerate(scores, first)}


def compared(runs: dict[str, dict[int, list[Record]]]) -> Comparison:
    stored = {label: {s: SimpleNamespace(history=h) for s, h in mine.items()} for label, mine in runs.items()}
    return Comparison(Config(), stored, Outcome(), None)


def test_nobody_wins_where_no_seed_is_shared() -> None:
    """Of one method the runs of seeds 0 and 1 are there, of the other that of seed 2: nothing can be said."""
    made = compared({"A": ended(0.1, 0.1), "B": ended(0.9, first=2)})
    assert [row.behind for row in made.rows] == [None, None]
    assert made.winner is None


def test_who_is_behind_on_more_seeds_does_not_win() -> None:
    """A is ahead of B on the seeds that C has, too, and clearly behind B on all of theirs."""
    a, c = ended(0.72, 0.71, 0.73, *[0.60, 0.61, 0.62] * 3), ended(0.20, 0.21, 0.19)
    b = ended(0.71, 0.70, 0.72, *[0.80, 0.81, 0.82] * 3)
    made = compared({"A": a, "B": b, "C": c})
    behind = made.rows[1].behind
    assert behind is not None
    assert behind.clear
    assert behind.mean > 0
    assert made.winner is None
