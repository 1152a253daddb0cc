"""Simulated attackers: what each sends, written out, and which servers withstand them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm as gauss

import fedsmoo
from fedsmoo.algorithms import FedAvg, FedSMOO, Median, NormBounded
from fedsmoo.algorithms.attacks import ALIE, ATTACKS, Gaussian, Scaled, SignFlip, mirrored
from fedsmoo.algorithms.compressed import Sign, TopK
from fedsmoo.algorithms.privacy import Private
from fedsmoo.algorithms.quantised import Quantised
from fedsmoo.core import FedsmooError, Round, Vectors
from fedsmoo.core.contract import findings
from fedsmoo.testing import undescribed

DOWN = Vectors(w=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
CHANGE = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)
SIZES = "sizes-" + ",".join(30 * ["20"])


def client(number: int) -> Round:
    return Round(0, 0.1, 1, 1.0, client=torch.tensor([float(number)]), key=torch.tensor([number, 5]))


@pytest.mark.parametrize(
    ("attack", "sends"), [(SignFlip(attackers=2, scale=3.0), -3 * CHANGE), (Scaled(attackers=2), 10 * CHANGE)]
)
def test_attackers_send_another_change_and_others_their_own(attack, sends):
    for number, want in ((0, sends), (1, sends), (2, CHANGE)):
        _, up = attack.finish(DOWN.w + CHANGE, DOWN, Vectors(), client(number))
        assert torch.allclose(up.w, DOWN.w + want, atol=1e-15)


@pytest.mark.parametrize("code", [TopK(ratio=0.5), TopK(ratio=0.5, feedback=False), Sign(), Quantised(kind="fp16")])
@pytest.mark.parametrize(("attack", "factor"), [(SignFlip(attackers=1, scale=3.0), -3.0), (Scaled(attackers=1), 10.0)])
def test_attackers_change_what_a_code_says_was_changed(code, attack, factor):
    """The server has w + A(C(u)): a code is of the change u alone, so that the model itself is no part of it."""
    server, attacked = code.init(DOWN.w), replace(attack, inner=code)
    me = code.first_contact(DOWN)
    _, plain = code.finish(DOWN.w + CHANGE, DOWN, me, client(0))
    for number, want in ((0, factor * plain.w), (1, plain.w)):
        _, up = attacked.finish(DOWN.w + CHANGE, DOWN, me, client(number))
        assert torch.allclose(attacked.aggregate(server, up, Round(0, 0.1, 1, 1.0, n=1)).w, DOWN.w + want, atol=1e-12)


def test_what_is_put_around_a_code_sees_changes_as_changes():
    """A bound of 0.5 on the change (0, -1, 0), which a code of one number of three leaves; then rounded to halves."""
    code = TopK(ratio=0.1, feedback=False)
    me, only = code.first_contact(DOWN), torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64)
    _, up = code.finish(DOWN.w + CHANGE, DOWN, me, client(0))
    assert torch.equal(up.w, only)
    bounded = NormBounded(code, bound=0.5).combine(DOWN, Vectors(w=up.w[None]), torch.ones(1, 1), client(0))
    assert torch.allclose(bounded.w, 0.5 * only, atol=1e-12)
    _, hidden = Private(code, bound=0.5).finish(DOWN.w + CHANGE, DOWN, me, client(0))
    assert torch.allclose(hidden.w, 0.5 * only, atol=1e-12)
    twice = Quantised(code, kind="fp16")
    _, again = twice.finish(DOWN.w + CHANGE, DOWN, twice.first_contact(DOWN), client(0))
    assert torch.allclose(again.w, only, atol=1e-12)
    new = twice.aggregate(twice.init(DOWN.w), again, Round(0, 0.1, 1, 1.0, n=1))
    assert torch.allclose(new.w, DOWN.w + only, atol=1e-12)


def test_noise_is_as_long_as_asked():
    """A change of 2,000 numbers: the length of the noise is ten times its own, within five deviations."""
    down, change = Vectors(w=torch.zeros(2000, dtype=torch.float64)), torch.linspace(-1, 1, 2000, dtype=torch.float64)
    _, up = Gaussian(attackers=1).finish(change, down, Vectors(), client(0))
    assert abs(up.w.norm() / (10 * change.norm()) - 1) < 5 / math.sqrt(4000)
    assert abs(torch.nn.functional.cosine_similarity(up.w, change, dim=0)) < 5 / math.sqrt(2000)


def test_a_little_is_enough_by_hand():
    """Two of nine replies: z hides among the five nearest to the mean, s = floor(9 / 2 + 1) - 2 = 3 of seven."""
    rows = torch.arange(27, dtype=torch.float64).view(9, 3).sin()
    each = Round(0, 0.1, 1, 1.0, client=torch.arange(9.0)[:, None], n=9)
    weights = torch.full((9, 1), 1 / 9, dtype=torch.float64)
    z = gauss.ppf((9 - 2 - 3) / (9 - 2))
    honest = rows[2:]
    bad = honest.mean(0) - z * honest.std(0, correction=0)
    wrong = torch.cat([bad[None], bad[None], honest])
    made = ALIE(attackers=2).combine(DOWN, Vectors(w=rows), weights, each)
    assert torch.allclose(made.w, wrong.mean(0), atol=1e-12)
    median = ALIE(Median(), attackers=2).combine(DOWN, Vectors(w=rows), weights, each)
    assert torch.allclose(median.w, wrong.median(0).values, atol=1e-12)
    fixed = ALIE(attackers=2, z=1.5).combine(DOWN, Vectors(w=rows), weights, each)
    assert torch.allclose(fixed.w, (2 * (honest.mean(0) - 1.5 * honest.std(0, correction=0)) + honest.sum(0)) / 9)


def test_attackers_alone_have_no_others_to_hide_among():
    """What they send is then of their own replies, not of none."""
    rows, each = (
        torch.arange(6.0).view(2, 3).sin().double(),
        Round(0, 0.1, 1, 1.0, client=torch.arange(2.0)[:, None], n=2),
    )
    made = ALIE(attackers=2, z=1.5).combine(DOWN, Vectors(w=rows), torch.full((2, 1), 0.5, dtype=torch.float64), each)
    torch.testing.assert_close(made.w, rows.mean(0) - 1.5 * rows.std(0, correction=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("inner", [FedAvg(), FedSMOO(), Median()], ids=["fedavg", "fedsmoo", "median"])
def test_attacks_keep_the_contract(name, inner):
    assert findings(ATTACKS[name](inner)) == []
    assert undescribed(ATTACKS[name](inner)) == ([], [])


@pytest.mark.parametrize("name", ATTACKS)
def test_engines_agree(name):
    settings = {"clients": 6, "cohort": 4, "rounds": 3, "local_steps": 2, "dtype": "float64", "attack": name}
    runs = [
        fedsmoo.simulate("softmax", "digits", "fedsmoo", engine=e, attack_options={"attackers": 2}, **settings)
        for e in ("serial", "batched")
    ]
    one, other = ([r.test_loss for r in run.history] for run in runs)
    assert one == pytest.approx(other, abs=1e-9)


def test_no_attackers_change_nothing():
    settings = {"clients": 6, "cohort": 4, "rounds": 2, "local_steps": 2, "engine": "serial"}
    plain = fedsmoo.simulate("softmax", "digits", "fedavg", **settings)
    none = fedsmoo.simulate(
        "softmax", "digits", "fedavg", attack="sign-flip", attack_options={"attackers": 0}, **settings
    )
    assert [r.test_loss for r in plain.history] == [r.test_loss for r in none.history]


@pytest.mark.parametrize("attackers", [31, "31", "steps:0:1:31"])
@pytest.mark.parametrize("division", [{}, {"partition": "iid", "clients": 30}, {"partition": SIZES}], ids=str)
def test_no_more_attackers_than_clients(division, attackers):
    """Data with clients of its own, here 30, a number of them, and a partition that says how many there are."""
    few = {"local_steps": 1, "rounds": 1, "cohort": 2}
    with pytest.raises(FedsmooError, match=r"^attackers is 31, but there are 30 clients: lower it$"):
        attacked(attackers, **few, **division)
    assert attacked(30, **few, **division).history


def attacked(attackers, **settings):
    given = {"attack": "sign-flip", "attack_options": {"attackers": attackers}}
    return fedsmoo.simulate("softmax", "synthetic", "fedavg", **given, **settings)


@pytest.mark.parametrize("samples", [4, 0])
def test_bad_labels_are_counted_from_the_other_end(samples: int) -> None:
    out, y = torch.randn(samples, 5, dtype=torch.float64), torch.arange(samples) % 5
    for bad, labels in ((1.0, 4 - y), (0.0, y)):
        want = torch.logsumexp(out, 1) - out.gather(1, labels[:, None])[:, 0]
        torch.testing.assert_close(mirrored(out, y, torch.tensor(bad), None), want, rtol=1e-12, atol=1e-12)
        given = mirrored((out, out + 1), y, torch.tensor(bad), lambda both, y: both[1][torch.arange(len(y)), y])
        torch.testing.assert_close(given, out.gather(1, labels[:, None])[:, 0] + 1, rtol=1e-12, atol=1e-12)


class Looking(FedAvg):
    """Also reads features, the loss, and how often each class is met."""

    features = True

    def slope(self, w, grad, down, me):
        first = grad.mean(w, lambda out, y: (y == 0).to(out[0].dtype))
        return grad.loss(w) * grad(w) * (1 + first), me


@pytest.mark.parametrize(
    ("schedule", "method"),
    [
        ("constant", "fedavg"),
        ("cosine", "fedavg"),
        ("constant", "fedlc"),
        ("cosine", "fedlc"),
        ("constant", Looking()),
        ("cosine", Looking()),
    ],
)
def test_clients_that_all_flip_train_as_on_data_with_flipped_labels(schedule: str, method: str | FedAvg) -> None:
    """Also inside of what tells the method another round, as a schedule of the learning rate does; and FedLC's counts
    of samples are of the labels that are trained on."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 6)), rng.integers(4, size=(2, 80)).min(0)  # more of the first classes
    settings = {"clients": 4, "cohort": 4, "rounds": 2, "local_steps": 3, "batch_size": 5, "dtype": "float64"}
    settings |= {"engine": "serial", "partition": "iid", "local_schedule": schedule}
    given = {"attack": "label-flip", "attack_options": {"attackers": 4}}
    flipped = fedsmoo.simulate("softmax", (x, y, x, y), method, **given, **settings)
    plain = fedsmoo.simulate("softmax", (x, 3 - y, x, y), method, **settings)
    torch.testing.assert_close(flipped.server.w, plain.server.w, rtol=0, atol=1e-12)
    assert [r.train_loss for r in flipped.history] == pytest.approx([r.train_loss for r in plain.history], abs=1e-12)
