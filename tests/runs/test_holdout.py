"""Samples held out for validation: nobody trains on them, and what is measured on them is what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo import simulate
from fedsmoo.core import FedsmooError
from fedsmoo.core.random.streams import stream
from fedsmoo.data.division.holdout import hold_out
from fedsmoo.data.division.splitfile import save_split
from fedsmoo.data.sources import load
from fedsmoo.deploy.settings import parse
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.results.finished import open_finished
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.names import METRICS
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.sweeps.pack import Pack, assemble_pack
from fedsmoo.sweeps.results import export, from_folder, from_json

DIGITS = load("digits", None, 0)
TASK = Config(
    algorithm="scaffold", model="softmax", clients=12, cohort=4, rounds=4, local_epochs=1, batch_size=16, lr=0.05,
    dtype="float64", device="cpu", engine="batched", holdout=0.25, seed=3,
)  # fmt: skip
DIVISIONS = {
    "with replacement": {"partition": "dirichlet-0.1"},
    "refilled": {"partition": "dirichlet-0.3", "refill": True},
    "without": {"partition": "dirichlet-0.3", "replacement": False},
    "pathological": {"partition": "pathological-3"},
    "iid": {"partition": "iid", "replacement": False},
    "natural": {"partition": "natural"},
    "split file": {},
}


def divided(name: str, folder: Path) -> tuple[Simulation, list[np.ndarray]]:
    """A run with a holdout, and who held what before the cut."""
    config, data = TASK.replace(**DIVISIONS[name]), DIGITS
    if name == "natural":
        ends = np.array([3, 40, 400, 900, 1100, 1200, 1300, 1437])
        data = replace(data, natural=tuple(map(torch.from_numpy, np.split(np.arange(1437), ends[:-1]))))
        config = config.replace(clients=8)
    elif name == "split file":
        rng = np.random.default_rng(0)
        lists = [rng.integers(1437, size=60) for _ in range(9)]
        save_split(folder / "split.json", lists, data, {"name": "mine"}, 0)
        config = Config(**{**config.to_dict(), "split": str(folder / "split.json"), "clients": 9})
    return assemble(config, data=data), make_clients(config, data)


def held_literally(indices: list[np.ndarray], share: float, seed: int) -> set[int]:
    """The cut, written with sets: client after client, from what nobody before has."""
    held: set[int] = set()
    seen: set[int] = set()
    for client, samples in enumerate(indices):
        own = sorted(set(samples.tolist()))
        want = min(round(share * len(own)), len(own) - 1) - len(held.intersection(own))
        free = stream(seed, "holdout", client).permutation([s for s in own if s not in seen]).tolist()
        held.update(free[: max(want, 0)])
        seen.update(own)
    return held


@pytest.mark.parametrize("name", DIVISIONS)
def test_no_held_out_sample_is_in_any_batch_of_any_client(name: str, tmp_path: Path) -> None:
    run, before = divided(name, tmp_path)
    held = held_literally(before, 0.25, 3)
    assert run.setup.task.held is not None
    assert torch.equal(run.setup.task.held.x, run.setup.task.data.x_train[sorted(held)])
    assert torch.equal(run.setup.task.held.y, run.setup.task.data.y_train[sorted(held)])
    for client, samples in enumerate(before):  # what is left is left as it was, in its order and as often
        assert run.indices[client].tolist() == [s for s in samples.tolist() if s not in held]
    everyone, met = list(range(len(before))), set()
    for number in range(3):
        plan = run.plan(number, everyone)
        for k, c in np.argwhere(plan.count > 0):
            batch = set(plan.index[k, c, : plan.count[k, c]].tolist())
            assert not batch & held
            met |= batch
    assert met == set(np.concatenate(before).tolist()) - held  # and everything else is trained on


def test_shares_are_exact_where_clients_do_not_overlap_and_near_where_they_do(tmp_path: Path) -> None:
    run, before = divided("without", tmp_path)
    for old, new in zip(before, run.indices, strict=True):
        assert len(old) - len(new) == min(round(0.25 * len(old)), len(old) - 1)
    run, before = divided("with replacement", tmp_path)
    lost = [1 - len(set(n.tolist())) / len(set(o.tolist())) for o, n in zip(before, run.indices, strict=True)]
    assert np.mean(lost) == pytest.approx(0.25, abs=0.05)  # a cut of each client's own would lose far more


def test_a_cut_by_position_would_leak() -> None:
    """One sample held twice, and by two clients: it is held out everywhere or nowhere."""
    lists = [np.array([0, 0, 1, 2, 3]), np.array([3, 2, 1, 0, 0, 0, 7])]
    for seed in range(20):
        kept, held = hold_out(lists, 0.5, seed)
        assert not set(np.concatenate(kept).tolist()) & set(held.tolist())
        assert len(held) >= 2


def test_validation_accuracy_is_that_of_the_model_on_those_samples() -> None:
    result = simulate("softmax", "digits", "fedsmoo", **small(rounds=5))
    held = held_literally(make_clients(TASK, DIGITS), 0.25, 3)
    x, y = DIGITS.x_train[sorted(held)].double(), DIGITS.y_train[sorted(held)]
    with torch.no_grad():
        by_hand = (result.model.double()(x).argmax(1) == y).double().mean().item()
    assert result.history[-1].validation_accuracy == pytest.approx(by_hand, abs=1e-12)
    chosen = max(result.history, key=lambda r: (r.validation_accuracy, -r.round))
    assert result.validated == chosen
    assert "validation_accuracy" in result.frame
    without = simulate("softmax", "digits", "fedsmoo", **small(rounds=1, holdout=0.0))
    assert without.validated is None
    assert "validation_accuracy" not in without.frame


def small(**changes: object) -> dict:
    names = ("clients", "cohort", "rounds", "local_epochs", "batch_size", "lr", "dtype", "device", "holdout", "seed")
    return {n: getattr(TASK, n) for n in names} | changes


def histories(run: Simulation) -> list[tuple[float | None, float | None]]:
    return [(r.validation_accuracy, r.test_accuracy) for r in run.history]


def test_engines_packs_and_resumed_runs_agree(tmp_path: Path) -> None:
    configs = [TASK.replace(seed=s) for s in (3, 4)]
    alone = [assemble(c) for c in configs]
    for run in alone:
        run.run()
    assert histories(alone[0]) != histories(alone[1])
    packed = assemble_pack(configs)
    Pack(packed).run()
    assert [histories(s) for s in packed] == [histories(s) for s in alone]  # each on the samples of its own seed
    for engine in ("serial", "vmap"):
        other = assemble(TASK.replace(engine=engine))
        other.run()
        assert histories(other) == histories(alone[0])
    seen: list[int] = []
    Run.begin(TASK, tmp_path / "run").go(lambda r: seen.append(r.round), lambda: len(seen) == 2)
    summary = reopen(tmp_path / "run").go().summary
    assert [(r.validation_accuracy, r.test_accuracy) for r in read_run(tmp_path / "run").history] == histories(alone[0])
    best = max(alone[0].history, key=lambda r: (r.validation_accuracy, -r.round))
    assert summary is not None
    assert summary["validated_round"] == best.round
    assert (summary["validation_accuracy"], summary["validated_accuracy"]) == histories(alone[0])[best.round - 1]
    assert [i.tolist() for i in open_finished(tmp_path / "run").indices] == [i.tolist() for i in alone[0].indices]


def test_it_is_in_result_files_and_part_of_what_a_run_is(tmp_path: Path) -> None:
    Run.begin(TASK, tmp_path / "runs" / "a").go()
    (file,) = export([tmp_path / "runs"], tmp_path)
    back, direct = from_json(file), from_folder(tmp_path / "runs" / "a")
    assert back.curve["validation_accuracy"] == direct.curve["validation_accuracy"] != [None] * 4
    assert back.history[-1].validation_accuracy == direct.curve["validation_accuracy"][-1]
    assert back.curve["drift_after"] == direct.curve["drift_after"]
    assert back.identity == identity(TASK) != identity(TASK.replace(holdout=0.0))
    assert identity(TASK.replace(holdout=0.0)) == identity(Config(**{**TASK.to_dict(), "holdout": 0}))
    Run.begin(TASK.replace(holdout=0.0), tmp_path / "runs" / "b").go()
    lines = (tmp_path / "runs" / "b" / METRICS).read_text().splitlines()
    assert all("validation_accuracy" not in json.loads(line) for line in lines)
    assert "validation_accuracy" not in from_folder(tmp_path / "runs" / "b").curve


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, float("nan"), "much"])
def test_shares_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(FedsmooError, match="holdout"):
        Config(holdout=value)


def test_a_client_left_without_samples_is_refused() -> None:
    lists = [[0, 1, 2, 3], [4, 5], [6], [0], [1], [2], [3]]
    with pytest.raises(FedsmooError, match=r"holdout 0.5 leaves client \d without a sample to train on \(2 such"):
        simulate("softmax", "digits", "fedavg", client_indices=lists, cohort=1, rounds=1, holdout=0.5)
    with pytest.raises(FedsmooError, match="keeps no sample"):
        simulate("softmax", "digits", "fedavg", client_indices=[[6], [7]], cohort=1, rounds=1, holdout=0.5)
    with pytest.raises(FedsmooError, match="holdout is for simulated runs"):
        parse({"holdout": 0.1})
