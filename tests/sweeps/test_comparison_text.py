"""The row of a comparison as text."""

from __future__ import annotations

import pytest

from fedsmoo.runs.record import Record
from fedsmoo.sweeps.comparison import cells, row


def history(reached: int) -> list[Record]:
    """Three rounds, accurate from one of them on."""
    return [Record(t, 0.9 if t >= reached else 0.1, 1.0, 1.0, 0.0, 0.1, [0], 10, 10, 0.1, 0.1) for t in (1, 2, 3)]


@pytest.mark.parametrize(("reached", "shown"), [((1, 2), "1.5"), ((2, 2), "2"), ((1, 2, 2), "1.7")])
def test_a_mean_of_rounds_is_not_rounded_to_one(reached: tuple[int, ...], shown: str) -> None:
    runs = {seed: history(t) for seed, t in enumerate(reached)}
    assert cells(row("fedavg", runs, 0.5))[4] == shown
