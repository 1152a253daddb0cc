"""Client-level privacy: bounds and noise over many draws, cohorts of random size, and the accountant's numbers."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsmoo
from fedsmoo.algorithms import FedAvg, Median
from fedsmoo.algorithms.around import Around
from fedsmoo.algorithms.fedexp import FedExP
from fedsmoo.algorithms.fednova import FedNova
from fedsmoo.algorithms.privacy import Private
from fedsmoo.algorithms.rates import Cosine, Linear
from fedsmoo.algorithms.scaffold import SCAFFOLD
from fedsmoo.analysis.functions.privacy import epsilon_spent, private_part
from fedsmoo.core import FedsmooError, Round, Vectors
from fedsmoo.core.contract import findings
from fedsmoo.testing import undescribed

dp_event = pytest.importorskip("dp_accounting.dp_event")
SMALL = {"clients": 6, "cohort": 3, "rounds": 3, "local_steps": 2}


@dataclass(frozen=True)
class Spy(Around):
    """A method that notes what reaches its server."""

    seen: list = field(default_factory=list)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        self.seen.append(mean)
        return srv


def server(number: int, n: int) -> Round:
    return Round(number, 0.1, 1.0, 0.5, n=n, key=torch.tensor([number, 77]))


def test_changes_are_bounded_all_together():
    """SCAFFOLD sends two vectors: their joint norm is the bound, or what it was."""
    method = Private(SCAFFOLD(), bound=0.5)
    down = Vectors(w=torch.ones(3, dtype=torch.float64), c=torch.zeros(3, dtype=torch.float64))
    me = SCAFFOLD().first_contact(down)
    for scale in (1e-3, 10.0):
        w = down.w + scale * torch.tensor([1.0, 2.0, -2.0], dtype=torch.float64)
        _, plain = SCAFFOLD().finish(w, down, me, Round(0, 0.1, 2, 0.5))
        _, up = method.finish(w, down, me, Round(0, 0.1, 2, 0.5))
        length = math.sqrt((plain.w - down.w).square().sum() + plain.dc.square().sum())
        factor = min(1.0, 0.5 / length)
        assert torch.allclose(up.w - down.w, factor * (plain.w - down.w), atol=1e-14)
        assert torch.allclose(up.dc, factor * plain.dc, atol=1e-14)


@pytest.mark.parametrize("inner", [FedNova(), Linear(FedAvg()), Cosine(FedNova())], ids=lambda m: m.label)
def test_numbers_of_steps_take_no_part_of_the_bound(inner):
    """A bound of half a change halves it, whatever number of steps is sent beside it; that number stays what it is."""
    down, change = Vectors(w=torch.ones(3).double()), torch.tensor([1.0, 2.0, -2.0]).double()
    me = Vectors(**{n: torch.full((1,), 40.0).double() for n in inner.local})
    rnd, name = Round(0, 0.1, torch.full((1,), 50.0).double(), 0.5), inner.up[0]
    _, plain = inner.finish(down.w + change, down, me, rnd)
    before = down.w if name == "w" else 0
    sent = getattr(plain, name) - before
    _, up = Private(inner, bound=sent.norm().item() / 2).finish(down.w + change, down, me, rnd)
    assert torch.allclose(getattr(up, name) - before, sent / 2, atol=1e-14)
    for number in inner.scalars:
        assert torch.equal(getattr(up, number), getattr(plain, number))
    method = Private(inner, bound=1.0, noise=3.0, expected=8.0)
    spy = Spy(inner)
    dataclasses.replace(method, inner=spy).aggregate(inner.init(down.w), plain, server(0, 6))
    assert all(torch.equal(getattr(spy.seen[0], n), getattr(plain, n)) for n in inner.scalars)
    assert not torch.equal(getattr(spy.seen[0], name), getattr(plain, name))


def test_a_local_schedule_beside_privacy_trains_as_well_as_none():
    """With a bound that cuts and no noise: the sum of the rates, about 40, is not what the bound is spent on."""
    settings = {"clients": 5, "cohort": 5, "rounds": 3, "local_steps": 75, "batch_size": 20, "partition": "iid"}
    private = {"privacy": "client", "bound": 1.0, "noise": 0.0}
    found = [
        fedsmoo.simulate("softmax", "digits", "fedavg", local_schedule=name, **settings, **private).history[-1]
        for name in ("constant", "linear")
    ]
    assert found[0].test_accuracy > 0.8
    assert found[1].test_accuracy > 0.8


@pytest.mark.parametrize(
    ("method", "schedule", "who"), [("fednova", "constant", "FedNova"), ("fedavg", "linear", "local_schedule=linear")]
)
def test_a_number_of_steps_that_tells_of_a_clients_samples_is_not_sent(method, schedule, who):
    """By epochs clients make as many steps as they have batches, and no noise hides how many."""
    settings = {"clients": 5, "cohort": 5, "rounds": 1, "batch_size": 20, "partition": "iid", "privacy": "client"}
    with pytest.raises(FedsmooError, match=f"{who} by epochs: .* set local_steps, the same for all"):
        fedsmoo.simulate("softmax", "digits", method, local_schedule=schedule, **settings)
    fedsmoo.simulate("softmax", "digits", method, local_schedule=schedule, local_steps=2, **settings)


def test_noise_has_the_deviation_that_is_accounted_for():
    """1,000 rounds of 50 numbers: mean 0 and deviation noise bound / n, each within five of its own deviations."""
    method, w = Private(FedAvg(), bound=2.0, noise=1.5), torch.zeros(50, dtype=torch.float64)
    draws = torch.stack([method.aggregate(Vectors(w=w), Vectors(w=w), server(i, 10)).w for i in range(1000)])
    want = 1.5 * 2.0 / 10
    assert abs(draws.mean()) < 5 * want / math.sqrt(draws.numel())
    assert abs(draws.std() / want - 1) < 5 / math.sqrt(2 * draws.numel())
    apart = np.corrcoef(draws[:-1].flatten(), draws[1:].flatten())[0, 1]  # rounds share no noise
    assert abs(apart) < 5 / math.sqrt(draws.numel())


def test_a_cohort_of_random_size_divides_by_the_expected_one():
    method, w = Private(FedAvg(), noise=0.0, expected=8.0), torch.zeros(4, dtype=torch.float64)
    mean = torch.ones(4, dtype=torch.float64)
    assert torch.equal(method.aggregate(Vectors(w=w), Vectors(w=mean), server(0, 6)).w, 6 / 8 * mean)


def test_single_numbers_are_hidden_too():
    method = Private(FedExP(), bound=1.0, noise=1.0)
    srv = FedExP().init(torch.zeros(4, dtype=torch.float64))
    sent = Vectors(
        w=torch.zeros(4, dtype=torch.float64), **{n: torch.zeros(1, dtype=torch.float64) for n in FedExP().scalars}
    )
    _, up = method.finish(torch.full((4,), 50.0, dtype=torch.float64), srv, Vectors(), Round(0, 0.1, 1, 1.0))
    assert math.isclose(math.sqrt(sum(v.square().sum() for _, v in up.items())), 1.0, rel_tol=1e-12)
    assert method.aggregate(srv, sent, server(1, 3)).w.abs().sum() > 0


@dataclass(frozen=True)
class Steps(FedAvg):
    """Sends how many steps a client took, as a number of Python's."""

    up = ("w", "taken")
    scalars = ("taken",)

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, taken=4.0)


def test_a_number_of_pythons_is_bounded_with_the_rest():
    """A change of 3 and a number of 4: both shrink by 2 / 5."""
    down = Vectors(w=torch.ones(2, dtype=torch.float64))
    _, up = Private(Steps(), bound=2.0).finish(down.w + torch.tensor([3.0, 0.0]), down, Vectors(), Round(0, 0.1, 4, 1))
    assert up.w.tolist() == pytest.approx([1 + 3 * 2 / 5, 1.0], rel=1e-15)
    assert up.taken.tolist() == pytest.approx([4 * 2 / 5], rel=1e-15)


def test_by_default_the_noise_of_the_sum_is_as_large_as_a_client_may_be():
    method = Private(FedAvg())
    assert (method.bound, method.noise, method.expected) == (1.0, 1.0, None)
    assert method.label == "FedAvg+private"


@pytest.mark.parametrize("inner", [FedAvg(), SCAFFOLD(), FedExP()], ids=["fedavg", "scaffold", "fedexp"])
def test_it_keeps_the_contract(inner: fedsmoo.Algorithm):
    assert findings(Private(inner)) == []
    assert undescribed(Private(inner)) == ([], [])


def test_what_cannot_be_private_is_refused():
    with pytest.raises(FedsmooError, match="sees every reply"):
        Private(Median())
    for clash in ({"weighted": True}, {"wire": "int8"}, {"compression": "topk"}):
        with pytest.raises(FedsmooError, match="privacy=client cannot be had with"):
            fedsmoo.simulate("softmax", "digits", "fedavg", privacy="client", **SMALL, **clash)


def test_epsilon_is_the_librarys(tmp_path: Path):
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    for sampling in ("bernoulli", "uniform"):
        settings = {**SMALL, "sampling": sampling, "privacy": "client", "algorithm": "fedavg", "model": "softmax"}
        fedsmoo.run({**settings, "privacy_options": {"noise": 2.0}}, tmp_path / sampling)
        (found,) = fedsmoo.analyse("privacy", tmp_path / sampling, delta=1e-3)
        if sampling == "bernoulli":
            event = dp_event.PoissonSampledDpEvent(0.5, dp_event.GaussianDpEvent(2.0))
            accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
        else:
            event = dp_event.SampledWithoutReplacementDpEvent(6, 3, dp_event.GaussianDpEvent(1.0))
            accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
        for _ in range(3):
            accountant.compose(event)
        assert found.values["epsilon"] == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-9)


def test_rounds_without_noise_spend_everything(tmp_path: Path):
    for cohort, random_size in ((5, True), (5, False), (10, False)):
        assert epsilon_spent(10, cohort, [1.0, 0.0], 1e-5, random_size) == math.inf
    noise = {"noise": "steps:1:2:0"}
    settings = {**SMALL, "privacy": "client", "algorithm": "fedavg", "model": "softmax", "privacy_options": noise}
    fedsmoo.run(settings, tmp_path / "run")
    with pytest.raises(FedsmooError, match="there is no noise in round 3: its epsilon is infinite"):
        fedsmoo.analyse("privacy", tmp_path / "run")
    assert epsilon_spent(10, 10, [4.0] * 3, 1e-5, False) > epsilon_spent(10, 5, [4.0] * 3, 1e-5, False) > 0
    assert private_part(FedAvg()) is None


def test_engines_agree():
    runs = [
        fedsmoo.simulate("softmax", "digits", "fedavg", privacy="client", engine=e, dtype="float64", **SMALL)
        for e in ("serial", "batched")
    ]
    one, other = ([r.test_loss for r in run.history] for run in runs)
    assert one == pytest.approx(other, abs=1e-10)
