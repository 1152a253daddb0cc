"""The package against the transcriptions: the same batches, float64, a network with GroupNorm, agreement to 1e-10.

Half of the clients take part in a round; they hold unequal numbers of samples, so they make unequal numbers of steps
and end on short batches; lr decays, weights decay, and the clip binds in some steps and not in others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedsmoo import algorithms, simulate
from fedsmoo.core import Algorithm, LocalRule
from fedsmoo.data.batches.cohort import cohort
from fedsmoo.data.batches.plan import Plan, make_plan
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.simulation import Simulation

from . import layers
from .reference import BOXES, run
from .servers import median
from .task import cnn, gradients, small_task, weights_of

ROUNDS, M, N, SEED, BATCH, EPOCHS = 3, 6, 3, 4, 4, 1
LR, DECAY, WEIGHT_DECAY = 0.2, 0.9, 0.01
TASK = small_task()
DATA = Dataset("boxes", TASK.x, TASK.y, TASK.x, TASK.y, TASK.classes)
INDICES = [np.array(rows) for rows in TASK.clients]
LABELS = {i: [int((TASK.y[list(rows)] == c).sum()) for c in range(3)] for i, rows in enumerate(TASK.clients)}
SIZES = {i: float(len(rows)) for i, rows in enumerate(TASK.clients)}

# Radii and penalties larger than the defaults: each term then weighs enough for an error in it to show.
FIELDS: dict[str, dict[str, Any]] = {
    "FedAvg": {"lr_server": 0.8},
    "FedAvgM": {"lr_server": 0.8, "beta1": 0.7},
    "FedAdam": {"lr_server": 0.05, "beta1": 0.7, "beta2": 0.9, "tau": 0.02},
    "FedYogi": {"lr_server": 0.05, "beta1": 0.7, "beta2": 0.9, "tau": 0.02},
    "FedAdagrad": {"lr_server": 0.05, "beta1": 0.3, "tau": 0.02},
    "FedProx": {"lr_server": 0.8, "mu": 0.7},
    "SCAFFOLD": {"lr_server": 0.8},
    "FedCM": {"lr_server": 0.8, "alpha": 0.3},
    "FedDyn": {"beta": 2.0},
    "FedSAM": {"lr_server": 0.8, "rho": 0.2},
    "MoFedSAM": {"lr_server": 0.8, "alpha": 0.3, "rho": 0.2},
    "FedSMOO": {"r": 0.2, "beta": 2.0},
    "FedSpeed": {"beta": 2.0, "rho": 0.2, "alpha": 0.6},
    "FedGamma": {"lr_server": 0.8, "rho": 0.2},
    "FedLESAM": {"lr_server": 0.8, "rho": 0.2},
    "FedLESAMS": {"lr_server": 0.8, "rho": 0.2},
    "FedLESAMD": {"beta": 2.0, "rho": 0.2},
    "FedACG": {"lam": 0.6, "mu": 0.7},
    "FedNSAM": {"lam": 0.6, "rho": 0.2},
    "FedDC": {"alpha": 0.5},
    "PFedMe": {"lr_server": 0.8, "lam": 2.0, "lr_own": 0.2, "steps_own": 2},
    "FedGloSS": {"beta": 2.0, "rho": 0.2, "rho_server": 0.3},
    "FedExP": {"eps": 0.02},
    "FedNova": {"lr_server": 0.8},
    "Median": {},
    "TrimmedMean": {"trim": 0.3},
    "Krum": {"attackers": 0.3},
    "MultiKrum": {"attackers": 0.3},
    "RFA": {"nu": 1e-3, "steps": 4},
    "NormBounded": {"bound": 0.5},
    "FedWMSAM": {"lr_server": 0.8, "alpha": 0.3, "rho": 0.2},
    "FedSWA": {"lr_server": 0.8, "rho": 0.3},
    "FedMoSWA": {"lr_server": 0.8, "rho": 0.3, "gamma": 0.4},
    "Ditto": {"lr_server": 0.8, "lam": 0.5},
    "FedPer": {"lr_server": 0.8},
    "FedRep": {"lr_server": 0.8, "head_share": 0.6},
    "FedLC": {"lr_server": 0.8, "tau": 0.7},
    "FedNTD": {"lr_server": 0.8, "beta": 0.8, "tau": 1.5},
    "FedGMT": {"gamma": 0.8, "tau": 1.5, "alpha": 0.7, "beta": 2.0},
    "MOON": {"lr_server": 0.8, "mu": 2.0, "tau": 0.5},
    "QFedAvg": {"q": 0.8},
    "FedBN": {"lr_server": 0.8},
}
# Norms about which the directions scatter; a momentum of several clients' gradients is shorter than a gradient.
CLIP = dict.fromkeys(FIELDS, 1.2) | {"FedCM": 0.6, "MoFedSAM": 0.6, "PFedMe": 0.5, "FedWMSAM": 0.6}
PROXIMAL = ("FedProx", "FedDyn", "FedSMOO", "FedSpeed", "FedLESAMD", "FedACG", "FedGloSS")
ROBUST = ("Median", "TrimmedMean", "Krum", "MultiKrum", "RFA", "NormBounded")
# Relaxed starts are the same in every method, but for what it calls its start and what it keeps.
STARTS = ("FedAvg", "SCAFFOLD", "FedDyn", "FedSMOO", "FedLESAM", "FedLESAMS", "FedACG", "PFedMe")
STARTS += ("FedPer", "FedRep", "FedBN")  # begin with a part of their own, which stays where it ended
# The mean is weighted before a method sees it. These weigh themselves, send what is no model, see every reply or keep
# more than a model; the others stand for all that only take the mean.
WEIGHED = ("FedAvg", "FedAdam", "SCAFFOLD", "FedDyn", "FedSMOO", "FedGamma", "FedDC", "FedGloSS", "FedExP", "FedNova")
WEIGHED += (*ROBUST, "FedWMSAM", "FedMoSWA", "Ditto", "FedRep", "FedGMT", "MOON", "QFedAvg")

REFERENCES: dict[str, tuple[list[layers.Model], list[bool]]] = {}  # each box is run once

# (method, fields besides FIELDS, options of the reference's local step and mean)
Case = tuple[str, dict[str, Any], dict[str, Any]]
CASES: list[Case] = [(method, {}, {}) for method in FIELDS]
CASES += [
    ("FedSMOO", {"perturbation": "released"}, {}),
    ("FedSMOO", {"regularise": False, "sam": False, "correct": False}, {}),
    ("FedSMOO", {"sam": False, "correct": False}, {}),
    ("FedSMOO", {"correct": False}, {}),
    ("FedSMOO", {"regularise": False}, {}),
    ("FedSMOO", {"regularise": False, "correct": False}, {}),
    ("FedSpeed", {"form": "released"}, {}),
    ("FedNSAM", {"form": "released"}, {}),
    ("FedGloSS", {"dual": "released"}, {}),
    ("FedWMSAM", {"form": "released"}, {}),
    ("FedDC", {"form": "paper"}, {}),
    ("FedDC", {"form": "paper"}, {"weights": SIZES}),
]
CASES += [(method, {}, {"clip_scope": "released"}) for method in PROXIMAL]
CASES += [(method, {}, {"weights": SIZES}) for method in WEIGHED]
CASES += [(method, {}, {"relaxed": 0.3}) for method in STARTS]


def name(case: Case) -> str:
    method, fields, options = case
    parts = [f"{k}={v}" for k, v in fields.items()] + [k if k == "weights" else f"{k}={v}" for k, v in options.items()]
    return "-".join([method, *parts])


def size_of(case: Case) -> int:
    """How many clients take part in a round: a robust rule needs some to leave out."""
    return 5 if case[0] in ROBUST or "rule" in case[2] else N


def plan_of(number: int, size: int) -> tuple[list[int], Plan]:
    clients = cohort(SEED, number, M, size)
    return clients, make_plan(SEED, number, clients, INDICES, BATCH, epochs=EPOCHS)


def reference_rounds(size: int = N) -> list[layers.Round]:
    """The very batches of the package's plan, as the reference takes them."""
    rounds = []
    for t in range(ROUNDS):
        clients, plan = plan_of(t, size)
        batches: dict[int, list[Any]] = {}
        for c, i in enumerate(clients):
            rows = [plan.index[k, c, : plan.count[k, c]] for k in range(int(plan.steps[c]))]
            batches[i] = [(TASK.x[r], TASK.y[r]) for r in rows]
        rounds.append(layers.Round(LR * DECAY**t, clients, batches))
    return rounds


def make_algorithm(case: Case) -> Algorithm:
    method, fields, options = case
    made = getattr(algorithms, method)(**FIELDS[method] | fields)
    return algorithms.Relaxed(made, options["relaxed"]) if "relaxed" in options else made


def numbers(weighted: bool) -> dict[str, Any]:
    """The settings of a run that make its rounds those of ``reference_rounds``."""
    rounds = {"rounds": ROUNDS, "cohort": N, "seed": SEED, "eval_every": ROUNDS, "weighted": weighted}
    return rounds | {"batch_size": BATCH, "local_epochs": EPOCHS, "lr": LR, "lr_decay": DECAY}


def package_run(case: Case, engine_of: Callable[[Setup], Any]) -> list[dict[str, torch.Tensor]]:
    method, _, options = case
    task = Task(FlatModel(cnn()), DATA, torch.device("cpu"), torch.float64)
    rule = LocalRule(WEIGHT_DECAY, CLIP[method], options.get("clip_scope", "all"))
    setup = Setup(task, make_algorithm(case), rule)
    simulation = Simulation(
        setup, engine_of(setup), Training(**numbers("weights" in options) | {"cohort": size_of(case)}), INDICES
    )
    models = []
    for _ in range(ROUNDS):
        simulation.advance()
        models.append(task.model.layout.split(simulation.server.w))
    return models


def loss_of(net: torch.nn.Module, w: layers.Model, client: int) -> float:
    """A client's mean cross-entropy over all of its samples."""
    rows = list(TASK.clients[client])
    with torch.no_grad():
        out = torch.func.functional_call(net, w, (TASK.x[rows],))
    return float(torch.nn.functional.cross_entropy(out, TASK.y[rows]))


def reference_run(case: Case) -> tuple[list[layers.Model], list[bool]]:
    """The box's models, and in which local steps its clip bound."""
    if name(case) not in REFERENCES:
        method, fields, options = case
        bound: list[bool] = []
        plain = layers.clipped

        def watched(d: layers.Model, limit: float | None) -> layers.Model:
            bound.append(limit is not None and layers.norm(d) > limit)
            return plain(d, limit)

        hyper = FIELDS[method] | fields | options | {"clip": CLIP[method], "weight_decay": WEIGHT_DECAY}
        net = cnn()
        hyper |= {"labels": LABELS, "loss_of": lambda w, i: loss_of(net, w, i)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "clipped", watched)
            models = run(method, gradients(net), weights_of(net), reference_rounds(size_of(case)), M, hyper)
        REFERENCES[name(case)] = models, bound
    return REFERENCES[name(case)]


def largest_gap(case: Case, models: list[dict[str, torch.Tensor]]) -> float:
    """Between the package's models of the last rounds and the reference's, over all numbers."""
    last = reference_run(case)[0][-len(models) :]
    return max(float((a[k] - b[k]).abs().max()) for a, b in zip(last, models, strict=True) for k in a)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_serial_engine_follows_the_box(case: Case) -> None:
    assert largest_gap(case, package_run(case, Serial)) < 1e-10


@pytest.mark.parametrize("method", FIELDS)
def test_batched_engine_follows_the_box(method: str) -> None:
    """All clients of the cohort at once, those with fewer steps masked out when they have finished."""
    case = (method, {}, {})
    assert largest_gap(case, package_run(case, Batched)) < 1e-10


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("FedExP", {"eps": 0.01}),
        ("TrimmedMean", {"trim": 0.1}),
        ("Krum", {"attackers": 0.1}),
        ("MultiKrum", {"attackers": 0.1}),
        ("RFA", {"nu": 1.0}),
        ("RFA", {"steps": 1}),
        ("NormBounded", {"bound": 0.4}),
        ("FedLC", {"tau": 0.6}),
        ("FedNTD", {"beta": 0.7}),
        ("FedNTD", {"tau": 1.2}),
        ("FedGMT", {"gamma": 0.7}),
        ("FedGMT", {"tau": 1.2}),
        ("FedGMT", {"alpha": 0.8}),
        ("MOON", {"mu": 1.0}),
        ("MOON", {"tau": 0.7}),
        ("QFedAvg", {"q": 0.5}),
    ],
)
def test_numbers_that_show_among_several_clients_or_on_a_model_matter(method: str, change: dict[str, Any]) -> None:
    assert largest_gap((method, {}, {}), package_run((method, change, {}), Batched)) > 1e-4


def test_a_median_of_fedsmoo_s_replies() -> None:
    """The rule takes the place of every mean in the box of the method inside."""
    inside = algorithms.FedSMOO(**FIELDS["FedSMOO"])
    made = package_run(("Median", {"inner": inside}, {}), Serial)
    assert largest_gap(("FedSMOO", {}, {"rule": median}), made) < 1e-10


@pytest.mark.parametrize("engine", ["serial", "vmap"])
def test_public_call_follows_the_box(engine: str) -> None:
    """Every option at once, from the arguments of ``simulate`` to the trained module."""
    options = {"clip_scope": "released", "weights": SIZES, "relaxed": 0.3}
    result = simulate(
        cnn(),
        DATA,
        make_algorithm(("FedSMOO", {}, {})),
        client_indices=INDICES,
        dtype="float64",
        device="cpu",
        engine=engine,
        relaxed=0.3,
        weight_decay=WEIGHT_DECAY,
        clip=CLIP["FedSMOO"],
        clip_scope="released",
        **numbers(weighted=True),
    )
    models = [weights_of(result.model)]
    assert largest_gap(("FedSMOO", {}, options), models) < 1e-10


def test_every_method_of_the_package_has_a_box() -> None:
    classes = {kind.__name__ for kind in algorithms.ALGORITHMS.values()}
    assert classes == set(BOXES) == set(FIELDS)


def test_the_rounds_are_as_hard_as_promised() -> None:
    """Unequal steps, short batches, clients that come back and clients that are new after the first round."""
    rounds = reference_rounds()
    steps = {len(rnd.batches[i]) for rnd in rounds for i in rnd.cohort}
    sizes = {len(y) for rnd in rounds for i in rnd.cohort for _, y in rnd.batches[i]}
    assert len(steps) > 3
    assert min(sizes) == 1
    assert max(sizes) == BATCH
    seen = [set(rnd.cohort) for rnd in rounds]
    assert seen[0] & set.union(*seen[1:])
    assert set.union(*seen[1:]) - seen[0]


@pytest.mark.parametrize("method", FIELDS)
def test_the_clip_binds_in_some_steps_only(method: str) -> None:
    _, bound = reference_run((method, {}, {}))
    assert 0.05 < sum(bound) / len(bound) < 0.95
