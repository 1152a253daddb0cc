"""Private rounds that draw nobody: their noise is the accountant's, and the server does not say how many came."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import fedsmoo
from fedsmoo.algorithms.optimisers import Adam, AdamW
from fedsmoo.algorithms.privacy import Private
from fedsmoo.core import FedsmooError, Round
from fedsmoo.core.random.noise import key_of
from fedsmoo.runs.build import assemble
from fedsmoo.runs.settings.merge import make_config

FEW = {
    "clients": 6, "cohort": 1, "rounds": 12, "local_steps": 3, "sampling": "bernoulli", "privacy": "client",
    "privacy_options": {"bound": 0.5, "noise": 0.8}, "model": "softmax", "dtype": "float64", "device": "cpu",
    "engine": "serial",
}  # fmt: skip
LR, DECAY, K = 0.1, 0.998, 3


def noise(number: int, name: str, like: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """What the server draws in a round, by the deviation on the page: noise bound / expected cohort."""
    rnd = Round(number, LR, K, 1.0, key=torch.tensor(key_of(seed, "noise of the server", number)))
    return 0.8 * 0.5 / 1 * rnd.normal(f"privacy of {name}", like)


def after_each_round(method: str, **settings: Any) -> tuple[list[list[int]], list[dict[str, torch.Tensor]]]:
    """The cohorts of a run, and the server's vectors before and after each of its rounds."""
    run = assemble(make_config({**FEW, "algorithm": method}, settings))
    kept = [dict(run.server.items())]
    for _ in range(run.training.rounds):
        run.advance()
        kept.append(dict(run.server.items()))
    return [record.cohort for record in run.history], kept


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova", "fedcm", "feddyn"])
def test_who_draws_nobody_adds_noise_alone(method):
    cohorts, kept = after_each_round(method)
    empty = [t for t, who in enumerate(cohorts) if not who]
    assert empty, "the seed draws nobody in some round"
    for t in empty:
        srv, now = kept[t], kept[t + 1]
        e = {n: noise(t, n, srv["w"]) for n in ("w", "dc", "d")}
        w, lr, share = srv["w"], LR * DECAY**t, 1 / 6
        if method == "scaffold":
            assert torch.allclose(now["c"], srv["c"] + share * e["dc"], atol=1e-12)
        if method == "fedcm":
            assert torch.allclose(now["D"], -e["w"] / (K * lr), atol=1e-12)
        if method == "fednova":
            expected = w + K * e["d"]
        elif method == "feddyn":  # lam <- lam - share (mean - w) / beta, w <- mean - beta lam
            beta = fedsmoo.FedDyn().beta
            lam = srv["lam"] - share * e["w"] / beta
            assert torch.allclose(now["lam"], lam, atol=1e-12)
            expected = w + e["w"] - beta * lam
        else:
            expected = w + e["w"]
        assert torch.allclose(now["w"], expected, atol=1e-12), t


@pytest.mark.parametrize("attack", ["sign-flip", "scaled", "gaussian", "alie"])
@pytest.mark.parametrize("method", ["fednova", "fedcm"])
def test_where_nobody_came_nobody_attacks(method, attack):
    """What clients would have sent of their steps was asked of one without a number: the run ended in a TypeError."""
    schedule = "constant" if method == "fednova" else "cosine"
    cohorts, kept = after_each_round(method, attack=attack, local_schedule=schedule)
    empty = [t for t, who in enumerate(cohorts) if not who]
    assert empty
    for t in empty:
        expected = noise(t, "d", kept[t]["w"]) * K if method == "fednova" else noise(t, "w", kept[t]["w"])
        assert torch.allclose(kept[t + 1]["w"], kept[t]["w"] + expected, atol=1e-12), t


def test_rates_of_a_local_schedule_are_those_of_any_client():
    """FedCM divides by the sum of the rates, which somebody would have sent."""
    cohorts, kept = after_each_round("fedcm", local_schedule="cosine")
    t = next(t for t, who in enumerate(cohorts) if not who)
    rates = sum(0.1 + 0.9 * (1 + math.cos(math.pi * k / K)) / 2 for k in range(K))
    drawn = noise(t, "w", kept[t]["w"])
    assert torch.allclose(kept[t + 1]["D"], -drawn / (LR * DECAY**t * rates), atol=1e-12)


def test_the_share_of_clients_is_the_expected_one():
    """SCAFFOLD moves c by n / m times a noisy sum: with the n that came, c would tell who came."""
    cohorts, kept = after_each_round("scaffold")
    t = next(t for t, who in enumerate(cohorts) if len(who) > 1)
    moved = kept[t + 1]["c"] - kept[t]["c"] - noise(t, "dc", kept[t]["w"]) / 6
    # What is left is the bounded sum of n messages times 1 / (6 * 1): at most n bounds; with n / m it would be n times.
    assert float(moved.norm()) <= len(cohorts[t]) * 0.5 / 6 + 1e-9
    more = kept[t + 1]["c"] - kept[t]["c"] - len(cohorts[t]) * noise(t, "dc", kept[t]["w"]) / 6
    assert float(more.norm()) > len(cohorts[t]) * 0.5 / 6


def test_the_model_moves_in_as_many_rounds_as_are_accounted_for():
    cohorts, kept = after_each_round("fedavg")
    assert [] in cohorts
    assert all(not torch.equal(a["w"], b["w"]) for a, b in pairwise(kept))


def test_without_privacy_nobody_changes_nothing():
    cohorts, kept = after_each_round("fedavg", privacy="off", privacy_options={})
    empty = [t for t, who in enumerate(cohorts) if not who]
    assert empty
    assert all(torch.equal(kept[t]["w"], kept[t + 1]["w"]) for t in empty)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighted": True}, "cannot be had with weighted"),
        ({"wire": "int8"}, "cannot be had with wire=int8"),
        ({"sampling": "round_robin"}, "cannot be had with sampling=round_robin"),
        ({"sampling": "bernoulli"}, "has expected=None, but with sampling=bernoulli and a cohort of 3 it is 3"),
    ],
)
def test_privacy_by_hand_is_held_to_the_same_rules(settings, message):
    small = {"clients": 6, "cohort": 3, "rounds": 1, "local_steps": 2, "progress": False}
    with pytest.raises(FedsmooError, match=message):
        fedsmoo.simulate("softmax", "digits", Private(fedsmoo.FedAvg()), **small, **settings)
    with pytest.raises(FedsmooError, match=r"has expected=3\.0, but with sampling=uniform"):
        fedsmoo.simulate("softmax", "digits", Private(fedsmoo.FedAvg(), expected=3.0), **small)


def test_adamw_by_hand_has_the_runs_weight_decay_beside_its_moments():
    small = {
        "clients": 3,
        "cohort": 3,
        "rounds": 2,
        "local_steps": 3,
        "dtype": "float64",
        "weight_decay": 0.3,
        "lr": 0.01,
    }
    runs = {
        name: fedsmoo.simulate("softmax", "digits", method, device="cpu", progress=False, **small, **more).server.w
        for name, method, more in (
            ("named", "fedavg", {"local_optimizer": "adamw"}),
            ("by hand", AdamW(fedsmoo.FedAvg()), {}),
            ("its own", AdamW(fedsmoo.FedAvg(), weight_decay=0.3), {}),
            ("adam", Adam(fedsmoo.FedAvg()), {}),
        )
    }
    assert torch.equal(runs["named"], runs["by hand"])
    assert torch.equal(runs["named"], runs["its own"])
    assert not np.allclose(runs["named"], runs["adam"], atol=1e-4)
