"""Methods that ask for steps, facts or losses of their own: the same on every engine, in packs, and told the truth."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import pytest
import torch

from fedsmoo.algorithms import FedAvg, FedSMOO, Relaxed
from fedsmoo.core import FedsmooError, Schedule
from fedsmoo.core.contract import Scale, findings
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.facts import Facts
from fedsmoo.sweeps.pack import Pack
from fedsmoo.testing import check_algorithm

from .own_losses import OWN, Calibrated, Contrasted, Distilled, Fair
from .small import ROUNDS, SIZES, Trace, dataset, indices, largest_gap, make_setup, simulation, state, trace
from .told import KINDS, Falling, Known, Noisy

TOLERANCE = 1e-10
ALL = {**KINDS, **OWN}


@lru_cache
def reference(name: str) -> Trace:
    return trace(simulation("serial", "mlp", ALL[name]))


@pytest.mark.parametrize("kind", ["vmap", "hand", "chunk2", "recorded", "recorded2"])
@pytest.mark.parametrize("name", ALL)
def test_every_kind_on_every_engine(name: str, kind: str) -> None:
    """Bernoulli cohorts, unequal clients, batches with padding, clips that bind."""
    assert largest_gap(trace(simulation(kind, "mlp", ALL[name])), reference(name)) < TOLERANCE


def test_every_kind_is_a_method_of_its_own() -> None:
    plain = trace(simulation("serial", "mlp", FedAvg()))
    for name in ALL:
        assert float((reference(name)[-1]["server w"] - plain[-1]["server w"]).abs().max()) > 1e-4, name


RAMP = Schedule(0.02, 0.3, 3)
CHANGED = {
    "step": Falling(rho=0.6),
    "facts": Known(by=0.3),
    "momentum that stays, falling": dataclasses.replace(KINDS["momentum that stays, falling"], beta=0.4),
    "noise": Noisy(by=0.3),
    "outputs": Distilled(beta=2.0, tau=3.0),
    "labels and step": Calibrated(tau=0.3),
    "features": Contrasted(mu=2.0),
    "loss": Fair(q=0.5),
}
PAIRS = {
    **{name: (ALL[name], other) for name, other in CHANGED.items()},
    "two schedules": (FedSMOO(r=RAMP, beta=2.0), FedSMOO(r=Schedule(0.2, 0.0, 3, "cosine"), beta=4.0)),
    "one schedule": (FedSMOO(r=RAMP, beta=2.0), FedSMOO(r=0.1, beta=2.0)),
    "the same schedule": (Relaxed(FedSMOO(r=RAMP), 0.1), Relaxed(FedSMOO(r=RAMP), 0.3)),
}


EQUAL_COHORTS = {"sampling": "uniform", "weighted": True}


@lru_cache
def each_alone(name: str) -> list[Trace]:
    return [trace(simulation("serial", "mlp", m, seed=s, **EQUAL_COHORTS)) for s, m in enumerate(PAIRS[name])]


@pytest.mark.parametrize("kind", ["hand", "vmap", "recorded"])
@pytest.mark.parametrize("name", PAIRS)
def test_two_runs_in_one_batch_are_each_alone(name: str, kind: str) -> None:
    """Other numbers, other seeds: facts, steps and numbers that move are those of each run's own clients."""
    runs = [simulation(kind, "mlp", m, seed=s, **EQUAL_COHORTS) for s, m in enumerate(PAIRS[name])]
    pack, found = Pack(runs), ([], [])
    for _ in range(ROUNDS):
        for run, record, out in zip(runs, pack.advance([0, 1]), found, strict=True):
            out.append(state(run, record))
    assert max(largest_gap(a, b) for a, b in zip(found, each_alone(name), strict=True)) < TOLERANCE


@pytest.mark.parametrize("name", ALL)
def test_the_check_before_a_run_accepts_every_kind(name: str) -> None:
    method = ALL[name]
    assert not findings(method, Scale(features=6))  # of the model that they are tried on
    assert all("no box" in note for note in check_algorithm(method, compiled=False, features=6))


@pytest.mark.parametrize("kind", ["serial", "hand"])
@pytest.mark.parametrize("name", [*OWN, "facts", "momentum that stays, falling", "schedule"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(name: str, kind: str) -> None:
    method = {**ALL, "schedule": FedSMOO(r=RAMP, beta=2.0)}[name]
    whole, first, second = (simulation(kind, "mlp", method) for _ in range(3))
    expected = trace(whole)
    for _ in range(2):
        first.advance()
    second.restore(first.server, list(first.engine.table.items()), first.history)
    for number in (2, 3):
        found = state(second, second.advance())
        assert found.keys() == expected[number].keys()
        assert all(torch.equal(v, expected[number][k]) for k, v in found.items())


def test_the_step_counts_from_zero_to_the_last_one() -> None:
    """By hand: the rates of four steps from 1 towards 0.25."""
    run, seen = simulation("serial", "softmax", Falling(rho=0.25), local_epochs=None, local_steps=4), []
    w, d = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    rnd = run.prepare().round_of(0)
    for k in range(4):
        step = torch.full((1,), k, dtype=torch.float64)
        seen.append(-run.setup.algorithm.update(w, d, None, rnd.at_step(step))[0][0].item() / rnd.lr)
    assert seen == pytest.approx([1, 1 - 0.75 / 4, 1 - 0.75 / 2, 1 - 0.75 * 3 / 4])


def test_facts_are_counted_from_the_samples() -> None:
    data = dataset()
    facts = Facts(make_setup("mlp", FedAvg()).task, indices()).of([5, 0, 3], FedAvg(), torch.zeros(0))
    assert facts["client"].tolist() == [[5], [0], [3]]
    assert facts["samples"].tolist() == [[SIZES[5]], [SIZES[0]], [SIZES[3]]]
    for row, i in zip(facts["labels"], (5, 0, 3), strict=True):
        labels = data.y_train[torch.from_numpy(indices()[i])].tolist()
        assert row.tolist() == [labels.count(k) for k in range(data.classes)]


def test_targets_that_are_no_classes_have_no_counts() -> None:
    """Whatever a method does with them, it is told so; others never notice."""
    setup = make_setup("mlp", Known())
    y = setup.task.data.y_train.double()
    data = Dataset("small", setup.task.data.x_train, y, setup.task.data.x_train, y, 3)
    labels = Facts(dataclasses.replace(setup.task, data=data), indices()).of([0], FedAvg(), torch.zeros(0))["labels"]
    uses = [lambda: labels.sum(-1), lambda: labels + 1, lambda: 2 * labels, lambda: labels[..., 0], lambda: labels > 3]
    for use in [*uses, lambda: torch.sqrt(labels), lambda: torch.ones(3) / labels]:
        with pytest.raises(FedsmooError, match=r"test_told.py:\d+ in .*rnd.labels: the targets .* are no classes"):
            use()
