"""The server's half of a round against the same written out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from fedsmoo import Algorithm, FedsmooError, Round, Vectors
from fedsmoo.core.server import ServerSettings, all_finite, is_evaluated, lr_of, round_of, server_step, weights_of
from fedsmoo.runs.settings.training import Training

SCHEDULE: ServerSettings = Training(rounds=7, lr=0.2, lr_decay=0.9, weighted=True, eval_every=3)


@dataclass(frozen=True)
class Told(Algorithm):
    """A method whose server keeps what it was told of the round, and adds up what it was sent."""

    up = ("w", "n")
    scalars = ("n", "told")
    server = ("total", "told")

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        told = torch.tensor([rnd.number + 10 * rnd.lr + 100 * rnd.steps + 1000 * rnd.share])
        return srv.replace(w=mean.w, total=srv.total + mean.n * mean.w, told=told)


def test_a_step_is_what_the_method_makes_of_the_mean_and_the_round() -> None:
    samples, steps = [10, 30, 60], [2, 3, 5]
    weights = weights_of(SCHEDULE, samples)
    assert weights == [0.1, 0.3, 0.6]
    rnd = round_of(SCHEDULE, 4, steps, weights, share=3 / 8)
    assert (rnd.number, rnd.share, rnd.n) == (4, 0.375, 3)
    assert rnd.lr == lr_of(SCHEDULE, 4) == pytest.approx(0.2 * 0.9 * 0.9 * 0.9 * 0.9, rel=1e-15)
    assert rnd.steps == pytest.approx(0.1 * 2 + 0.3 * 3 + 0.6 * 5, rel=1e-15)
    server = Told().init(torch.ones(2))
    new = server_step(Told(), server, Vectors(w=torch.tensor([3.0, 5.0]), n=torch.tensor([2.0])), rnd, 2, loss=1.0)
    assert new is not None
    assert new.total.tolist() == [6.0, 10.0]
    assert new.told.item() == pytest.approx(4 + 10 * 0.2 * 0.9**4 + 100 * 4.1 + 1000 * 0.375, rel=1e-6)
    assert server.total.tolist() == [0.0, 0.0]


def test_without_weights_all_clients_count_alike() -> None:
    plain = Training(weighted=False)
    assert weights_of(plain, [10, 30, 60, 5]) == [0.25] * 4
    assert round_of(plain, 0, [2, 3, 5], [1 / 3] * 3, 1.0).steps == 10 / 3
    assert weights_of(plain, []) == []  # a Bernoulli cohort may be empty


@pytest.mark.parametrize(
    ("w", "n", "loss"), [(math.nan, 1.0, 1.0), (math.inf, 1.0, 1.0), (1.0, math.nan, 1.0), (1.0, 1.0, math.nan)]
)
def test_a_step_that_is_not_finite_is_none(w: float, n: float, loss: float) -> None:
    mean = Vectors(w=torch.tensor([1.0, w]), n=torch.tensor([n]))
    rnd = Round(0, 0.1, 1.0, 1.0)
    assert server_step(Told(), Told().init(torch.zeros(2)), mean, rnd, 2, loss) is None


def test_whether_numbers_are_finite_is_about_each_not_about_their_sum() -> None:
    large, both, one = torch.tensor([3e38, 3e38]), torch.tensor([math.inf, -math.inf]), torch.ones(1)
    assert all_finite(Vectors(w=large, n=one))
    assert not all_finite(Vectors(w=both, n=one))
    assert not all_finite(Vectors(w=large, n=torch.tensor([math.nan])))


@pytest.mark.parametrize(("w", "n", "what"), [(3, 1, "3 numbers as w, but declares 2"), (2, 2, "2 numbers as n, but")])
def test_what_has_another_shape_is_refused(w: int, n: int, what: str) -> None:
    mean = Vectors(w=torch.ones(w), n=torch.ones(n))
    with pytest.raises(FedsmooError, match=f"Told.finish sends {what}"):
        server_step(Told(), Told().init(torch.zeros(2)), mean, Round(0, 0.1, 1, 1), 2, 1.0)


def test_the_model_is_evaluated_every_so_many_rounds_and_at_the_end() -> None:
    assert [k + 1 for k in range(7) if is_evaluated(SCHEDULE, k)] == [3, 6, 7]
    assert [k + 1 for k in range(4) if is_evaluated(SimpleNamespace(rounds=4, eval_every=1), k)] == [1, 2, 3, 4]
    assert [k + 1 for k in range(9) if is_evaluated(SimpleNamespace(rounds=9, eval_every=99), k)] == [9]
