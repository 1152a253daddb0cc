"""Every method on every engine equals the serial reference to 1e-10 in float64, vector by vector, round by round."""

from __future__ import annotations

from functools import lru_cache

import pytest
from algorithms.variants import SAME_STEPS, STRONG

from fedsmoo.algorithms import FedAvg, FedBN, FedLESAMS, FedSMOO, Relaxed
from fedsmoo.core import Algorithm

from .small import ROUNDS, Trace, largest_gap, simulation, trace

TOLERANCE = 1e-10
METHODS: dict[str, Algorithm] = {
    **STRONG,
    "fedbn": FedBN(norms="*bias"),  # an MLP has no norms
    "relaxed-fedavg": Relaxed(FedAvg(), 0.3),
    "relaxed-fedsmoo": Relaxed(FedSMOO(r=0.2, beta=2.0), 0.3),
    "relaxed-fedlesam-s": Relaxed(FedLESAMS(rho=0.2), 0.3),
}


@lru_cache
def reference(model: str, name: str, weighted: bool = False) -> Trace:
    return trace(simulation("serial", model, METHODS[name], weighted=weighted))


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in METHODS for kind in ("vmap", "hand", "recorded2") if name not in SAME_STEPS]
    + [(name, "chunk2") for name in METHODS],  # steps of FedAvg are those of SAME_STEPS, whatever takes them
)
def test_every_method(name: str, kind: str) -> None:
    """Bernoulli cohorts, unequal clients, clips that bind; an MLP."""
    run = trace(simulation(kind, "mlp", METHODS[name]))
    assert largest_gap(run, reference("mlp", name)) < TOLERANCE


@pytest.mark.parametrize("kind", ["vmap", "hand", "chunk1", "recorded"])
@pytest.mark.parametrize("model", ["cnn_gn", "softmax"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsmoo", "fedlesam-d"])
def test_other_models(name: str, model: str, kind: str) -> None:
    run = trace(simulation(kind, model, METHODS[name]))
    assert largest_gap(run, reference(model, name)) < TOLERANCE


@pytest.mark.parametrize("kind", ["vmap", "hand"])
def test_lenet(kind: str) -> None:
    few = {"rounds": 2, "local_epochs": 1}
    expected = trace(simulation("serial", "lenet", METHODS["fedsmoo"], **few))
    assert largest_gap(trace(simulation(kind, "lenet", METHODS["fedsmoo"], **few)), expected) < TOLERANCE


@pytest.mark.parametrize("kind", ["vmap", "hand", "chunk2", "recorded2"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsmoo", "relaxed-fedsmoo"])
def test_a_mean_weighted_by_samples(name: str, kind: str) -> None:
    run = trace(simulation(kind, "mlp", METHODS[name], weighted=True))
    assert largest_gap(run, reference("mlp", name, weighted=True)) < TOLERANCE
    assert largest_gap(run, reference("mlp", name)) > 1e-4  # the weights do matter


@pytest.mark.parametrize("kind", ["vmap", "hand", "chunk2"])
@pytest.mark.parametrize(
    ("rule", "training"),
    [
        ({"clip": None}, {"sampling": "uniform"}),
        ({"clip": 0.5, "scope": "released"}, {"sampling": "uniform"}),
        ({}, {"local_epochs": None, "local_steps": 5}),
        ({}, {"batch_size": 50}),
        ({}, {"cohort": 6, "sampling": "uniform"}),
    ],
    ids=["no-clip", "released-clip", "local-steps", "one-batch-an-epoch", "everybody"],
)
def test_other_settings(rule: dict, training: dict, kind: str) -> None:
    algorithm = METHODS["fedsmoo"]
    expected = trace(simulation("serial", "mlp", algorithm, rule, **training))
    assert largest_gap(trace(simulation(kind, "mlp", algorithm, rule, **training)), expected) < TOLERANCE


def test_the_cohorts_are_as_hard_as_promised() -> None:
    """One round is empty, the others differ in size, somebody comes back, and steps and batches are unequal."""
    run = simulation("hand", "softmax", FedAvg())
    cohorts, steps, sizes = [], set(), set()
    for t in range(ROUNDS):
        work = run.prepare()
        cohorts.append(work.clients)
        steps |= set(work.plan.steps.tolist())
        sizes |= set(work.plan.count[work.plan.count > 0].tolist())
        assert run.advance().cohort == cohorts[t]
    lengths = [len(c) for c in cohorts]
    assert 0 in lengths
    assert len(set(lengths)) > 2
    assert max(lengths) > 2  # a chunk of 2 is a part of it
    assert any(set(a) & set(b) for i, a in enumerate(cohorts) for b in cohorts[:i])
    assert len(steps) > 2
    assert {1, 4} <= sizes


def test_a_round_without_clients_changes_nothing_but_the_clock() -> None:
    run = simulation("hand", "softmax", METHODS["fedsmoo"])
    before = run.server
    while run.advance().cohort:
        before = run.server
    record = run.history[-1]
    assert run.server is before
    assert record.train_loss is None
    assert record.drift is None
    assert record.bytes_up == record.bytes_down == 0
    assert run.lr == pytest.approx(0.2 * 0.9 ** len(run.history))
