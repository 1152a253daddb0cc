"""Probes during training: asked for by name, in their rounds, with the numbers of the functions they stand for."""

from __future__ import annotations

import pytest

from fedsmoo import simulate
from fedsmoo.analysis.functions import hessian, sharpness
from fedsmoo.analysis.functions.objective import objective
from fedsmoo.analysis.probes import Schedule
from fedsmoo.core.errors import FedsmooError

SMALL = {"clients": 8, "cohort": 3, "rounds": 5, "local_steps": 2, "dtype": "float64", "engine": "serial"}


def test_probes_come_in_their_rounds_and_change_nothing_else() -> None:
    plain = simulate("softmax", "digits", "fedsmoo", **SMALL)
    probed = simulate("softmax", "digits", "fedsmoo", probe="sharpness:2,consistency:4,hessian:5,fairness:5", **SMALL)
    assert (plain.server.w == probed.server.w).all()
    assert [r.test_accuracy for r in plain.history] == [r.test_accuracy for r in probed.history]
    assert all(r.probes == {} for r in plain.history)
    found = [set(r.probes) for r in probed.history]
    consistent = {"dual_gap_lam", "cosine", "perturbation_distance"}
    assert found[0] == found[2] == set()
    assert found[1] == {"sharpness"}
    assert found[3] == {"sharpness"} | consistent
    last = {"hessian_top", "hessian_trace", "worst_tenth", "client_deviation"}
    assert found[4] == {"sharpness"} | consistent | last  # the last round has all of them


def test_probes_measure_the_model_after_their_round() -> None:
    result = simulate("softmax", "digits", "fedsmoo", probe="hessian:5,sharpness:5,consistency:5", **SMALL)
    probes, w = result.history[-1].probes, result.server.w
    loss = objective(result.simulation.setup.task, "train", 1000, size=500)
    assert probes["sharpness"] == pytest.approx(sharpness.worst_case(loss, w, 0.1, 3, 1).value)
    exact = hessian.top_eigenvalues(lambda v: loss.products(w, v), w, tol=1e-8)[0][0]
    assert probes["hessian_top"] == pytest.approx(exact, rel=0.03)
    assert probes["dual_gap_lam"] < 1e-12
    assert -1 <= probes["cosine"] <= 1
    assert 0 < probes["perturbation_distance"] < 2


def test_rounded_vectors_add_no_gap_of_their_errors() -> None:
    few = SMALL | {"rounds": 2}
    result = simulate("softmax", "digits", "feddyn", wire="int8", probe="consistency:2", **few)
    assert {n for n in result.history[-1].probes if n.startswith("dual_gap")} == {"dual_gap_lam"}
    rows = dict(result.simulation.engine.table.items()).values()
    assert "err_w" in result.server.names()  # both sides do keep errors under one name
    assert all("err_w" in row for row in rows)


def test_a_probe_nobody_knows_is_refused_before_the_first_round() -> None:
    with pytest.raises(FedsmooError, match="did you mean 'hessian'"):
        simulate("softmax", "digits", "fedavg", probe="hesian:5", **SMALL)
    for text in ("hessian", "hessian:0", "hessian:x", "hessian:-1"):
        with pytest.raises(FedsmooError, match="must be NAME:ROUNDS"):
            Schedule.parse(text)
    assert Schedule.parse("hessian:50, sharpness:10").every == {"hessian": 50, "sharpness": 10}
