"""Bernoulli cohorts beside FL-Simulator's, transcribed by hand from server/server.py:66-76 at 502bec6."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from fedsmoo.core.random.streams import stream
from fedsmoo.data.batches.cohort import bernoulli, uniform

Draw = Callable[[int], np.ndarray]  # which attempt -> a number for each client


def released(draw: Draw, ratio: float) -> list[int]:
    """Who takes part: everybody whose number is at most the ratio; numbers are drawn again if that is nobody."""
    attempt = 0
    while True:
        numbers = draw(attempt)
        chosen = []
        for client in range(len(numbers)):
            if numbers[client] <= ratio:
                chosen.append(client)
        attempt += 1
        if len(chosen) != 0:
            return chosen


def seeded(number: int, seed: int, clients: int) -> Draw:
    """Its own numbers: NumPy's old generator, seeded by the sum of round, seed and attempt."""
    return lambda attempt: np.random.RandomState(number + seed + attempt).uniform(size=clients)


@pytest.mark.parametrize(("clients", "cohort"), [(100, 10), (200, 10), (20, 19)])
def test_the_same_numbers_choose_the_same_clients(clients: int, cohort: int) -> None:
    for number in range(200):
        ours = bernoulli(3, number, clients, cohort)
        numbers = stream(3, "cohort", number).random(clients)
        assert ours == released(lambda _, numbers=numbers: numbers, cohort / clients)


def test_sizes_have_the_same_distribution() -> None:
    """Binomial: 100 clients with a chance of 0.1 each have a mean of 10 and a variance of 9."""
    sizes = {
        "ours": [len(bernoulli(0, number, 100, 10)) for number in range(4000)],
        "released": [len(released(seeded(number, 0, 100), 0.1)) for number in range(4000)],
    }
    for found in sizes.values():
        assert np.mean(found) == pytest.approx(10, abs=5 * 3 / 4000**0.5)
        assert np.var(found) == pytest.approx(9, rel=5 * (2 / 4000) ** 0.5)
    each = Counter(client for number in range(2000) for client in bernoulli(0, number, 100, 10))
    assert all(each[client] == pytest.approx(200, abs=5 * (2000 * 0.09) ** 0.5) for client in range(100))


def test_where_nobody_is_drawn_a_round_passes_here_and_is_drawn_again_there() -> None:
    """With 20 clients and a chance of 0.05 that is 0.95^20 of the rounds."""
    empty = [number for number in range(1000) if not bernoulli(0, number, 20, 1)]
    assert len(empty) == pytest.approx(1000 * 0.95**20, abs=5 * (1000 * 0.95**20 * (1 - 0.95**20)) ** 0.5)
    assert all(released(seeded(number, 0, 20), 0.05) for number in range(200))


def test_its_seeds_are_one_sequence_shifted_and_ours_are_not() -> None:
    theirs = [[released(seeded(number, seed, 100), 0.1) for number in range(20)] for seed in (0, 1)]
    assert theirs[1][:-1] == theirs[0][1:]
    for rule in (bernoulli, uniform):
        ours = [[rule(seed, number, 100, 10) for number in range(20)] for seed in (0, 1)]
        assert not any(a == b for a in ours[0] for b in ours[1])
