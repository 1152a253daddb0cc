"""A share of some things is as many as a person counts, wherever one is turned into a number."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import Krum, MultiKrum, TrimmedMean
from fedsmoo.algorithms.compressed import RandomK, TopK
from fedsmoo.core import Round, Vectors
from fedsmoo.core.share import count_of_share
from fedsmoo.data.digits import stratified
from fedsmoo.data.division.holdout import hold_out
from fedsmoo.data.forms import read_data
from fedsmoo.deploy.combine import trimmed_mean
from fedsmoo.paper.experiments import experiment


@pytest.mark.parametrize("whole", [math.floor, math.ceil, round])
def test_a_share_is_that_of_the_fraction_as_it_is_written(whole) -> None:
    counts, shares = [*range(1, 130), 1000, 62_006, 11_173_962], [f"{k / 200:g}" for k in range(201)]
    found = [count_of_share(n, float(share), whole) for share in shares for n in counts]
    assert found == [whole(Fraction(share) * n) for share in shares for n in counts]
    assert [count_of_share(k, 1 / k, whole) for k in range(1, 200)] == [1] * 199
    assert [count_of_share(n, 1e-9, whole) for n in (1, 10**6)] == [int(whole is math.ceil)] * 2


def trimmed_by(rule: TrimmedMean, rows: torch.Tensor) -> torch.Tensor:
    weights = torch.full((len(rows), 1), 1 / len(rows))
    return rule.combine(Vectors(w=rows[0]), Vectors(w=rows), weights, Round(0, 0.1, 1.0, 1.0, n=len(rows))).w


def test_servers_leave_out_as_many_replies_as_a_share_says() -> None:
    rows = torch.arange(100, dtype=torch.float64)[:, None] ** 2
    want = rows[29:71].mean(0)  # 0.29 * 100 is below 29 in floats
    assert torch.equal(trimmed_by(TrimmedMean(trim=0.29), rows), want)
    assert torch.equal(trimmed_mean(rows, 0.29), want)
    assert [rule(attackers=0.29).wrong(100) for rule in (Krum, MultiKrum)] == [29, 29]


def test_messages_have_as_many_numbers_as_a_share_says() -> None:
    assert TopK(ratio=0.07).size(100, 4) == 7 * 8  # 0.07 * 100 is above 7 in floats
    assert RandomK(ratio=0.07).size(100, 4) == 7 * 4


def test_parts_of_data_are_as_large_as_a_share_says() -> None:
    n, half = 90, 0.35  # 31.5 is 32, to even; in floats it is below
    kept, held = hold_out([np.arange(n)], half, seed=0)
    assert (len(kept[0]), len(held)) == (58, 32)
    assert [len(part) for part in stratified(np.zeros(n, int), half, np.random.default_rng(0))] == [58, 32]
    data = read_data((np.zeros((n, 2), np.float32), np.arange(n) % 2), test=half)
    assert (len(data.y_train), len(data.y_test)) == (58, 32)


def test_a_table_at_a_scale_has_as_many_rounds_as_a_share_says() -> None:
    assert {cell.config.rounds for cell in experiment("accuracy", scale=0.35, overrides={"rounds": 90}).cells} == {32}
