"""The row of a comparison as text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsmoo.runs.record import Record
from fedsmoo.sweeps.comparison import Comparison
from fedsmoo.sweeps.paired import make_row, row_cells


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
        *(SimpleNamespace(behind=SimpleNamespace(clear=c)) for c in (True, False)),
    )
    for rows, winner in (([near, best], None), ([best, clear, near], None), ([clear, best], best), ([best], best)):
        assert Comparison.winner.fget(SimpleNamespace(rows=rows)) is winner
