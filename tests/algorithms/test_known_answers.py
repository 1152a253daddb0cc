"""What is known in advance: fixed points, invariants, and methods that are special cases of one another."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch
from torch import Tensor

from fedsmoo.algorithms import SCAFFOLD, FedAdam, FedAvg, FedAvgM, FedCM, FedDyn, FedProx, FedSAM, FedSMOO, Relaxed
from fedsmoo.core import Algorithm
from fedsmoo.runs.simulation import Simulation

from .quadratics import federation, quadratics

PROBLEM = quadratics()
LR, K = 0.2, 5


def settled(algorithm: Algorithm, rounds: int, **settings) -> Tensor:
    return federation(PROBLEM, algorithm, LR, K, rounds=rounds, **settings).run().server.w


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm())


def test_fedavg_stops_where_the_closed_form_says_and_not_at_the_optimum() -> None:
    expected = PROBLEM.fedavg_fixed_point(LR, K)
    assert distance(expected, PROBLEM.optimum) > 0.01  # heterogeneity and K > 1 do move it
    assert distance(settled(FedAvg(), 40), expected) < 1e-12
    assert distance(settled(FedAvg(lr_server=0.5), 85), expected) < 1e-12  # the server's rate does not move it


def test_fedavg_with_one_step_is_gradient_descent() -> None:
    w = federation(PROBLEM, FedAvg(), 2 * LR, 1, rounds=65).run().server.w
    assert distance(w, PROBLEM.optimum) < 1e-12


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [(SCAFFOLD(), 30), (FedDyn(beta=2.0), 70), (FedDyn(beta=1.0), 40), (FedSMOO(r=1e-9, beta=1.0), 40)],
    ids=repr,
)
def test_corrected_methods_reach_the_optimum(algorithm: Algorithm, rounds: int) -> None:
    assert distance(settled(algorithm, rounds), PROBLEM.optimum) < 1e-7


@pytest.mark.parametrize(
    ("algorithm", "rounds"), [(SCAFFOLD(), 65), (FedDyn(beta=1.0), 95), (FedSMOO(r=0.0, beta=1.0), 95)], ids=repr
)
def test_corrected_methods_reach_the_optimum_with_half_of_the_clients(algorithm: Algorithm, rounds: int) -> None:
    """Full gradients, so the optimum is a fixed point whoever takes part."""
    assert distance(settled(algorithm, rounds, cohort=3), PROBLEM.optimum) < 1e-6


def test_fedsmoo_s_error_vanishes_with_its_radius() -> None:
    gaps = [distance(settled(FedSMOO(r=r, beta=1.0), 40), PROBLEM.optimum) for r in (1e-2, 1e-4, 1e-6)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-5


def test_a_fixed_point_of_one_client_is_its_own_optimum() -> None:
    """Without heterogeneity nothing needs a correction."""
    alone = dataclasses.replace(PROBLEM, a=PROBLEM.a[:1], b=PROBLEM.b[:1])
    for algorithm in (FedAvg(), FedProx(), SCAFFOLD(), FedDyn(), FedCM(alpha=0.5)):
        w = federation(alone, algorithm, LR, K, rounds=45).run().server.w
        assert distance(w, PROBLEM.b[0]) < 1e-8, algorithm


@pytest.mark.parametrize("sampling", ["uniform", "bernoulli"])
@pytest.mark.parametrize("algorithm", [FedDyn(beta=2.0), FedSMOO(r=0.3, beta=2.0)], ids=repr)
def test_the_server_s_dual_is_the_mean_of_the_clients(algorithm: Algorithm, sampling: str) -> None:
    """lam == mean of lam_i over all m clients, those never met counting as zero, after every round."""
    run = federation(PROBLEM, algorithm, LR, K, cohort=2, rounds=40, sampling=sampling)
    sizes = []
    for _ in range(40):
        before = run.server.w.clone()
        sizes.append(len(run.advance().cohort))
        assert torch.equal(run.server.w, before) == (sizes[-1] == 0)  # only a round without clients changes nothing
        total = sum((row["lam"] for _, row in run.engine.table.items()), torch.zeros_like(run.server.w))
        assert torch.allclose(run.server.lam, total / len(PROBLEM.a), rtol=0, atol=1e-13)
    if sampling == "uniform":
        assert sizes == [2] * 40
    else:  # each of six clients with probability 1/3: two in the mean, with a standard error of 0.18; sometimes none
        assert {0, 1, 2, 3} <= set(sizes)
        assert abs(sum(sizes) / 40 - 2) < 0.6


def test_scaffold_s_control_is_the_mean_of_the_clients() -> None:
    run = federation(PROBLEM, SCAFFOLD(), LR, K, cohort=2, rounds=30)
    for _ in range(30):
        run.advance()
        total = sum((row["c"] for _, row in run.engine.table.items()), torch.zeros_like(run.server.w))
        assert torch.allclose(run.server.c, total / len(PROBLEM.a), rtol=0, atol=1e-13)


def test_scaffold_s_controls_become_the_clients_gradients_at_the_optimum() -> None:
    run = federation(PROBLEM, SCAFFOLD(), LR, K, rounds=40)
    run.run()
    for i, row in run.engine.table.items():
        gradient = PROBLEM.a[i] @ (PROBLEM.optimum - PROBLEM.b[i])
        assert distance(row["c"], gradient) < 1e-8


def models(run: Simulation) -> list[Tensor]:
    return [run.advance() and run.server.w.clone() for _ in range(12)]


@cache
def whole_run(algorithm: Algorithm) -> list[Tensor]:
    """Every round's model: half of the clients, decaying lr, on both engines."""
    return [
        w
        for serial in (True, False)
        for w in models(federation(PROBLEM, algorithm, LR, K, cohort=3, lr_decay=0.95, serial=serial))
    ]


SAME = [
    (FedSMOO(sam=False, beta=2.0), FedDyn(beta=2.0)),
    (FedSMOO(sam=False, correct=False, beta=2.0), FedDyn(beta=2.0)),
    (FedSMOO(regularise=False, sam=False), FedAvg()),
    (FedSMOO(regularise=False, correct=False, r=0.2), FedSAM(rho=0.2)),
    (FedSMOO(r=0.0, beta=2.0), FedDyn(beta=2.0)),
    (FedProx(mu=0.0), FedAvg()),
    (FedSAM(rho=0.0), FedAvg()),
    (FedAvgM(beta1=0.0), FedAvg()),
    (FedCM(alpha=1.0), FedAvg()),
    (Relaxed(FedAvg(), 0.0), FedAvg()),
]


@pytest.mark.parametrize(("special", "plain"), SAME, ids=[f"{s!r}-is-{p!r}" for s, p in SAME])
def test_a_special_case_is_the_plain_method_bit_for_bit(special: Algorithm, plain: Algorithm) -> None:
    for a, b in zip(whole_run(special), whole_run(plain), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("algorithm", [FedSMOO(r=0.2, beta=2.0), FedAdam(), FedCM(alpha=0.5)], ids=repr)
def test_the_bit_for_bit_test_can_fail(algorithm: Algorithm) -> None:
    """The methods above really differ from the plain ones when their terms are on."""
    for plain in (FedAvg(), FedDyn(beta=2.0)):
        pairs = zip(whole_run(algorithm), whole_run(plain), strict=True)
        assert not any(torch.equal(a, b) for a, b in list(pairs)[1:2])
