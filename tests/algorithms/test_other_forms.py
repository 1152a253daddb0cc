"""Methods against the arithmetic of programs that their authors wrote in another way than the box."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedsmoo.algorithms import SCAFFOLD, FedDC, FedDyn
from fedsmoo.core import Algorithm

from .quadratics import federation, quadratics

PROBLEM = quadratics()
M, LR, K, ROUNDS = len(PROBLEM.a), 0.2, 5, 8


def gradient(i: int, w: Tensor) -> Tensor:
    return PROBLEM.a[i] @ (w - PROBLEM.b[i])


def rounds_of(algorithm: Algorithm, cohort: int) -> tuple[list[list[int]], list[Tensor]]:
    """Who took part in each round, and the models, of which the first is that before any."""
    run = federation(PROBLEM, algorithm, LR, K, cohort=cohort, rounds=ROUNDS)
    models = [run.server.w.clone()]
    cohorts = []
    for _ in range(ROUNDS):
        cohorts.append(list(run.advance().cohort))
        models.append(run.server.w.clone())
    return cohorts, models


def agree(left: list[Tensor], right: list[Tensor]) -> None:
    assert float((left[0] - left[-1]).norm()) > 0.1  # the models do move
    for a, b in zip(left, right, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", [1.0, 0.7])
def test_scaffold_of_all_clients_needs_no_control_from_the_server(rate: float) -> None:
    """Its first author's form (FLamby): where everybody takes part, a client's correction grows by how far the new
    global model is from where the client ended, and only models travel."""
    _, models = rounds_of(SCAFFOLD(lr_server=rate), M)
    w, ended = models[0], [models[0]] * M
    correction = [torch.zeros_like(w)] * M
    mine = [w]
    for _ in range(ROUNDS):
        for i in range(M):
            correction[i] = correction[i] + (w - ended[i]) / (rate * LR * K)
            v = w
            for _ in range(K):
                v = v - LR * (gradient(i, v) - correction[i])
            ended[i] = w + rate * (v - w)
        w = sum(ended) / M
        mine.append(w)
    agree(models, mine)


@pytest.mark.parametrize("cohort", [2, M])
def test_feddyn_remembers_how_far_clients_went(cohort: int) -> None:
    """Its authors' form: h_i sums a client's moves, it descends f_i + alpha (<h_i - w, w_i> + ||w_i||^2 / 2), and the
    mean h_i of all clients joins the mean model; alpha = 1 / beta."""
    alpha = 0.5
    cohorts, models = rounds_of(FedDyn(beta=1 / alpha), cohort)
    w = models[0]
    h = torch.zeros(M, len(w), dtype=w.dtype)
    mine = [w]
    for chosen in cohorts:
        ended = []
        for i in chosen:
            v = w
            for _ in range(K):
                v = v - LR * (gradient(i, v) + alpha * v + alpha * (h[i] - w))
            ended.append(v)
        for i, v in zip(chosen, ended, strict=True):
            h[i] += v - w
        w = torch.stack(ended).mean(0) + h.mean(0)
        mine.append(w)
    agree(models, mine)


@pytest.mark.parametrize("cohort", [2, M])
def test_feddc_keeps_all_drifts_and_states_in_two_tables(cohort: int) -> None:
    """Its authors' form: the last row of the states is the server's, moved by 1/m of the sum of the changes."""
    alpha = 0.3
    cohorts, models = rounds_of(FedDC(alpha=alpha), cohort)
    w = models[0]
    drift, state = torch.zeros(M, len(w), dtype=w.dtype), torch.zeros(M + 1, len(w), dtype=w.dtype)
    mine = [w]
    for chosen in cohorts:
        ended, change = [], torch.zeros_like(w)
        for i in chosen:
            v = w
            for _ in range(K):
                v = v - LR * (gradient(i, v) + alpha * (v - (w - drift[i])) + state[-1] - state[i])
            fresh = state[i] - state[-1] - (v - w) / (K * LR)
            change += fresh - state[i]
            state[i], drift[i] = fresh, drift[i] + v - w
            ended.append(v)
        state[-1] += change / M
        w = torch.stack(ended).mean(0) + drift.mean(0)
        mine.append(w)
    agree(models, mine)
