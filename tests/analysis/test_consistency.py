"""Agreement of clients: duals that must balance, updates recomputed, perturbations in closed form, fairness counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsmoo import simulate
from fedsmoo.analysis.functions import consistency
from fedsmoo.analysis.functions.fairness import fairness, mean_of_lowest_tenth
from fedsmoo.analysis.functions.objective import Objective
from fedsmoo.core import unit
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.results.result import Result


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(
        "mlp", "digits", "fedsmoo", clients=12, cohort=4, rounds=5, local_steps=3, dtype="float64", engine="serial"
    )


def test_the_server_s_dual_is_the_mean_of_the_clients_duals(result: Result) -> None:
    rows = dict(result.simulation.engine.table.items())
    assert 4 < len(rows) < 12  # some clients were never met: they hold zero
    gaps = consistency.dual_gaps(result.server, rows, 12)
    assert set(gaps) == {"lam"}
    assert gaps["lam"] < 1e-12 < result.server.lam.norm().item()
    wrong = consistency.dual_gaps(result.server.replace(lam=2 * result.server.lam), rows, 12)
    assert wrong["lam"] == pytest.approx(result.server.lam.norm().item())


def test_client_models_are_those_the_round_then_reaches() -> None:
    run = simulate(
        "mlp", "digits", "fedavg", clients=12, cohort=4, rounds=2, local_steps=3, dtype="float64", engine="serial"
    ).simulation
    work = run.prepare()
    before = run.server.w
    models = consistency.client_models(run.setup, run.engine.table, work)
    record = run.advance()
    torch.testing.assert_close(models.mean(0), run.server.w)  # FedAvg: the new global model is their mean
    assert (models - before).square().sum(1).mean().item() == pytest.approx(record.drift)
    assert (models - run.server.w).square().sum(1).mean().item() == pytest.approx(record.drift_after, rel=1e-10)
    found = consistency.residuals(models, before, run.server.w, beta=10.0)
    assert found["dual"] == pytest.approx((run.server.w - before).norm().item() / 10)
    assert found["primal"] == pytest.approx(math.sqrt(models.var(0, correction=0).sum().item()))


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_drift_after_the_server_s_step_of_methods_that_do_not_send_their_models(engine: str) -> None:
    """Rounded on the way, weighted by samples, moved on by the server: the drift is of the models themselves."""
    config = Config(
        algorithm="fedsmoo", clients=12, cohort=4, rounds=3, local_steps=3, dtype="float64", wire="int8",
        weighted=True, relaxed=0.1, engine=engine, device="cpu", partition="dirichlet", replacement=False,
    )  # fmt: skip
    run = assemble(config)
    for _ in range(3):
        work = run.prepare()
        models = consistency.client_models(run.setup, run.engine.table, work)
        record = run.advance()
        assert (models - work.down.w).square().sum(1).mean().item() == pytest.approx(record.drift, rel=1e-10)
        after = (models - run.server.w).square().sum(1).mean().item()
        assert after == pytest.approx(record.drift_after, rel=1e-10)
        assert after != pytest.approx(record.drift, rel=0.01)


def test_cosines_of_known_angles() -> None:
    updates = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    found = consistency.cosines(updates)
    assert found["pairwise"] == pytest.approx((0 - 1 + 0) / 3)
    mean = np.array([-2.0, 2.0]) / math.sqrt(8)
    assert found["with_mean"] == pytest.approx(np.mean([mean[0], mean[1], -mean[0]]), abs=1e-6)
    assert consistency.cosines(torch.ones(4, 3))["pairwise"] == pytest.approx(1.0)


def test_perturbations_from_the_clients_gradients(result: Result) -> None:
    task, w = result.simulation.setup.task, result.server.w
    held = [torch.from_numpy(i) for i in result.simulation.indices[:3]]
    losses = [Objective(task, task.data.x_train[i], task.data.y_train[i]) for i in held]
    gradients = torch.stack([f.gradient(w) for f in losses])
    plain = consistency.perturbations(losses, w, r=0.1)
    expected = (unit(gradients) - unit(gradients.mean(0))).norm(dim=1)
    assert plain == pytest.approx({"mean": expected.mean().item(), "max": expected.max().item()})
    s, mu = result.server.s, 0.01 * gradients
    corrected = consistency.perturbations(losses, w, 0.1, s, mu)
    expected = (0.1 * unit(gradients - mu - s) - s).norm(dim=1) / 0.1
    assert corrected["mean"] == pytest.approx(expected.mean().item())


def test_fairness_by_counting(result: Result) -> None:
    simulation = result.simulation
    task, w = simulation.setup.task, result.server.w
    found = fairness(task, w, simulation.indices)
    module = task.model.export(w)
    guess = module(task.data.x_test.double()).argmax(1)
    for k in range(10):
        mine = task.data.y_test == k
        assert found.classes[k] == pytest.approx((guess[mine] == k).double().mean().item())
    assert len(found.clients) == 12
    held = simulation.indices[0]
    labels = task.data.y_train[torch.from_numpy(held)]
    assert found.clients[0] == pytest.approx(np.mean([found.classes[k] for k in labels.tolist()]))
    own = module(task.data.x_train[torch.from_numpy(held)].double()).argmax(1)
    assert found.own[0] == pytest.approx((own == labels).double().mean().item())
    assert found.worst_tenth == pytest.approx(np.sort(found.clients)[:2].mean())
    assert found.worst_tenth <= found.mean <= found.best_tenth
    assert mean_of_lowest_tenth(np.array([0.5, np.nan, 0.25])) == 0.25
    assert mean_of_lowest_tenth(np.arange(11.0)) == (0 + 1) / 2  # a tenth of eleven is two
