"""The robust rules by themselves: closed forms, and what a wild reply can do to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import RFA, FedAvg, FedExP, FedSMOO, Krum, Median, MultiKrum, NormBounded, TrimmedMean
from fedsmoo.core import Algorithm, Round, Vectors, norm

N, P = 7, 40
ROWS = torch.randn((N, P), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = torch.arange(1.0, N + 1, dtype=torch.float64)[:, None] / sum(range(1, N + 1))
SRV = Vectors(w=torch.zeros(P, dtype=torch.float64))
RND = Round(1, 0.1, 2.0, 0.5, n=N)
RULES = [Median(), TrimmedMean(), Krum(), MultiKrum(), RFA(steps=50), NormBounded(bound=10.0)]


def combined(rule: Algorithm, rows: torch.Tensor, weights: torch.Tensor = WEIGHTS) -> torch.Tensor:
    return rule.combine(SRV, Vectors(w=rows), weights, RND).w


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(n: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rows = ROWS[:n].numpy()
    np.testing.assert_allclose(combined(Median(), ROWS[:n]), np.median(rows, 0), rtol=0, atol=1e-15)
    trimmed = stats.trim_mean(rows, 0.2, axis=0)
    np.testing.assert_allclose(combined(TrimmedMean(trim=0.2), ROWS[:n]), trimmed, rtol=0, atol=1e-15)


def test_the_geometric_median_is_where_pulls_cancel() -> None:
    """The gradient of the sum of p_i ||z - v_i|| is the weighted sum of unit vectors; on a line it is the median."""
    z = combined(RFA(steps=300, nu=1e-12), ROWS)
    pulls = WEIGHTS * (ROWS - z) / norm(ROWS - z)
    assert float(pulls.sum(0).norm()) < 1e-10
    line = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64) * ROWS[:1]
    z = combined(RFA(steps=200), line, torch.full((3, 1), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(z, ROWS[0], rtol=0, atol=1e-5)


def test_krum_takes_a_reply_and_multi_krum_leaves_the_strangest_out() -> None:
    rows = ROWS.clone()
    rows[3] += 100.0
    assert any(torch.equal(combined(Krum(), rows), rows[i]) for i in (0, 1, 2, 4, 5, 6))
    rest = torch.cat([rows[:3], rows[4:]])
    torch.testing.assert_close(combined(MultiKrum(attackers=0.2), rows), rest.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_one_wild_reply_moves_a_rule_a_little_and_the_mean_far(rule: Algorithm) -> None:
    wild = ROWS.clone()
    wild[2] = 1e6
    honest = torch.cat([ROWS[:2], ROWS[3:]])
    assert float((combined(FedAvg(), wild) - honest.mean(0)).norm()) > 1e5
    assert float((combined(rule, wild) - honest.mean(0)).norm()) < float(norm(ROWS).max())


def test_norms_are_bounded_around_what_was_sent() -> None:
    base = torch.full((P,), 5.0, dtype=torch.float64)
    rows = base + torch.diag(torch.arange(1.0, P + 1, dtype=torch.float64))[:2]  # updates of norm 1 and 2
    made = NormBounded(bound=1.5).combine(Vectors(w=base), Vectors(w=rows), torch.full((2, 1), 0.5).double(), RND).w
    expected = base.clone()
    expected[0], expected[1] = 5.0 + 0.5 * 1.0, 5.0 + 0.5 * 1.5
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-15)


def test_every_vector_of_a_reply_is_a_row_and_single_numbers_are_not() -> None:
    assert Median(FedSMOO()).rows == ("w", "s_tilde")
    assert Median(FedExP()).rows == ("w",)
    assert Krum(FedSMOO()).label == "FedSMOO+Krum"
    rows = Vectors(w=ROWS, s_tilde=2 * ROWS)
    best = Krum(FedSMOO()).combine(SRV, rows, WEIGHTS, RND)
    assert torch.equal(best.s_tilde, 2 * best.w)  # of the same client
