"""Personal models: each client's on what it holds out, in records, folders, tables and pages."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from pathlib import Path

import kinds
import numpy as np
import pytest
import torch
from kinds import Ditto, Heads

from fedsmoo import simulate
from fedsmoo.algorithms import FedAvg, Relaxed
from fedsmoo.core import Algorithm
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.sources import load
from fedsmoo.engines import personal
from fedsmoo.paper.tables import measured, measures
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import GLOBAL, PERSONAL, personal_fields
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.run import Run
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.names import METRICS, SUMMARY
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.sweeps.pack import Pack
from fedsmoo.sweeps.paired import make_row
from fedsmoo.sweeps.results import from_folder

TASK = Config(
    dataset="digits", model="mlp", clients=15, cohort=4, rounds=4, local_epochs=1, batch_size=16, lr=0.1, device="cpu",
    dtype="float64", partition="dirichlet-0.2", holdout=0.3, seed=1, eval_every=2, engine="serial",
)  # fmt: skip
ORDER = np.argsort(load("digits").y_train.numpy(), kind="stable")
SHARES = np.split(ORDER, np.cumsum([1, 90, 2, 200, 60, 1, 150, 40, 120, 75, 1, 180, 25, 110]))  # of few classes each
SPEC = f"{Path(kinds.__file__)}:Ditto"


def by_hand(result: Result, method: str) -> dict[str, float]:
    """What a record should say at the end, a client and a sample at a time."""
    run = result.simulation
    task, rows = run.setup.task, dict(run.engine.table.items())
    trained = {int(s) for samples in run.indices for s in samples}
    found: dict[str, list[float]] = {"personal": [], "global": []}
    for client, samples in enumerate(SHARES):  # before the cut
        own = sorted({int(s) for s in samples} - trained)
        if client not in rows or not own:
            continue
        v = rows[client]["v"]
        if method == "heads":
            last = task.model.layout.offsets["fc3.weight"]
            v = torch.cat([result.server.w[:last], v[last:]])
        for name, w in (("personal", v), ("global", result.server.w)):
            model = task.model.export(w)
            pairs = [(model(task.inputs(task.data.x_train[s][None])).argmax(), task.data.y_train[s]) for s in own]
            found[name].append(sum(bool(a == y) for a, y in pairs) / len(own))
    out = {}
    for name, values in found.items():
        worst = sorted(values)[: max(1, math.ceil(len(values) / 10))]
        spread = math.sqrt(sum((v - statistics.fmean(values)) ** 2 for v in values) / len(values))
        out |= {f"{name}_accuracy": statistics.fmean(values), f"{name}_deviation": spread}
        out[f"{name}_worst_tenth"] = statistics.fmean(worst)
    return out


def begun(config: Config, method: Algorithm) -> Simulation:
    return assemble(config, method, indices=SHARES)


METHODS: dict[str, Algorithm] = {"ditto": Ditto(), "heads": Heads(), "wrapped": Relaxed(Ditto(), 0.1)}


@pytest.mark.parametrize("method", METHODS)
def test_clients_met_are_asked_on_what_they_hold_out(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal, "SAMPLES", 60)  # groups of a few clients, and more samples than fit at once
    result = begun(TASK, METHODS[method]).run()
    truth = by_hand(result, method)
    assert result.personal == pytest.approx(truth, abs=1e-12)
    assert truth["personal_accuracy"] > truth["global_accuracy"] + 0.02  # they are not the same
    assert [r.personal_accuracy is not None for r in result.history] == [False, True, False, True]
    for change in ({"engine": "batched"}, {"engine": "vmap"}, {"engine": "batched", "chunk": 2}, {"table": "disk"}):
        other = begun(TASK.replace(**change), METHODS[method]).run()
        assert other.personal == pytest.approx(truth, abs=1e-12), change


def test_some_clients_are_not_met_and_some_hold_nothing_out() -> None:
    run = begun(TASK, Ditto())
    met = {i for r in run.run().history for i in r.cohort}
    assert run.held is not None
    assert len(met) < 15
    assert min(len(run.held[i]) for i in met) == 0 < max(len(run.held[i]) for i in met)


def test_others_pay_nothing_and_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    result = assemble(TASK, FedAvg()).run()
    assert result.personal == {}
    assert not {*PERSONAL, *GLOBAL} & {n for r in result.history for n in r.values()}
    with pytest.warns(FedsmooWarning, match=r"Ditto has personal models.*set holdout, such as 0\.2"):
        bare = assemble(TASK.replace(holdout=0.0), Ditto()).run()
    assert bare.personal == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assemble(TASK.replace(holdout=0.0), FedAvg())


def test_runs_that_share_a_batch_ask_their_own_clients() -> None:
    configs = [TASK.replace(engine="batched", seed=seed) for seed in (1, 2)]
    alone = [assemble(c, Ditto()).run().personal for c in configs]
    together = [r.personal for r in Pack([assemble(c, Ditto()) for c in configs]).run()]
    assert together == [pytest.approx(a, abs=1e-12) for a in alone]
    assert alone[0] != alone[1]


def test_a_client_s_own_module() -> None:
    result = simulate("mlp", "digits", Heads(), **{k: v for k, v in TASK.to_dict().items() if k in GIVEN})
    client = result.history[-1].cohort[0]
    state = result.client_state(client)
    assert state is not None
    mine, last = result.personal_model(client).state_dict(), result.simulation.setup.task.model.layout.offsets
    assert torch.equal(mine["fc3.bias"], state["v"][last["fc3.bias"] :])
    assert torch.equal(mine["fc1.weight"], result.model.state_dict()["fc1.weight"])
    assert not torch.equal(mine["fc3.bias"], result.model.state_dict()["fc3.bias"])
    stranger = next(i for i in range(15) if result.client_state(i) is None)
    assert torch.equal(result.personal_model(stranger).state_dict()["fc3.bias"], result.model.state_dict()["fc3.bias"])


GIVEN = ("clients", "cohort", "rounds", "local_epochs", "lr", "device", "partition", "holdout")


def test_folders_tables_and_pages_say_it(tmp_path: Path) -> None:
    config = TASK.replace(algorithm=SPEC, engine="batched")
    result = Run.begin(config, tmp_path / "run")
    result.go()
    last = result.simulation.history[-1]
    line = json.loads((tmp_path / "run" / METRICS).read_text().splitlines()[-1])
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    for name in (*PERSONAL, *GLOBAL):
        assert line[name] == summary[name] == getattr(last, name)
    back = read_run(tmp_path / "run")
    assert back.history == result.simulation.history
    kept = from_folder(tmp_path / "run")
    assert kept.curve["personal_accuracy"] == [None, pytest.approx(back.history[1].personal_accuracy, rel=1e-7),
                                               None, pytest.approx(last.personal_accuracy, rel=1e-7)]  # fmt: skip
    cells = dict(zip(measures([kept]), measured([kept], [kept], None, ""), strict=True))
    assert cells["personal"] == f"{100 * last.personal_accuracy:.2f}"
    assert cells["worst tenth"] == f"{100 * last.personal_worst_tenth:.2f}"
    made = make_row("Ditto", {1: back.history}, 0.5)
    assert (made.personal, made.worst_tenth) == (last.personal_accuracy, last.personal_worst_tenth)


def test_samples_are_cut_into_blocks_with_repetitions_that_do_not_count() -> None:
    found = list(personal.pieces([np.array([5, 6, 7]), np.array([9])], 2))
    assert [index.tolist() for index, _ in found] == [[[5, 6], [9, 9]], [[7], [9]]]
    assert [real.tolist() for _, real in found] == [[[True, True], [True, False]], [[True], [False]]]


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_no_mean_is_given_without_the_models_that_diverged(engine: str) -> None:
    """lr lam is 3, so that a client's own model is twice as far off, and on the other side, after every step."""
    few = {"clients": 3, "cohort": 3, "rounds": 4, "local_steps": 40, "lr": 0.05, "holdout": 0.2, "metrics": "loss"}
    with pytest.warns(FedsmooWarning, match="the loss of some personal models is no number, as they diverged: no me"):
        result = simulate("softmax", "digits", "ditto", lam=60.0, engine=engine, **few)
    last = result.history[-1]
    assert (last.personal_score, last.personal_worst_tenth) == (None, None)
    assert np.isfinite([last.global_score, last.global_worst_tenth]).all()
    assert result.personal.keys() == {"global_score", "global_deviation", "global_worst_tenth"}  # not of a round before
    assert "personal_score" not in (result.summary or {})


def test_a_metric_without_a_value_of_some_samples_leaves_those_clients_out() -> None:
    nan, values = float("nan"), [(0.5, 0.25), (1.0, 0.75)]
    found = personal_fields(np.array([*values, (nan, nan)]))
    assert found == personal_fields(np.array(values))
    assert (found["personal_accuracy"], found["global_accuracy"]) == (0.75, 0.5)
    with pytest.warns(FedsmooWarning, match="the accuracy of some personal models is no number"):
        assert "personal_accuracy" not in personal_fields(np.array([*values, (nan, 0.5)]))
