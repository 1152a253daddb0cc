"""``simulate(out=...)``: the run of ``fedsmoo run`` where settings name it; where they do not, no other one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsmoo
from fedsmoo import IID, Dirichlet, FedAvg, FedSMOO, Pathological
from fedsmoo.cli import main
from fedsmoo.core import FedsmooError
from fedsmoo.data.sources import load
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.origin.objects import objects_in
from fedsmoo.runs.storage.files import read_json
from fedsmoo.runs.storage.lease import LOCK
from fedsmoo.runs.storage.names import CONFIG, METRICS, MODEL, STARTED
from fedsmoo.runs.storage.reader import read_config, read_run

FEW: dict[str, Any] = {"cohort": 2, "rounds": 3, "local_steps": 2, "lr": 0.05, "device": "cpu", "seed": 1}
DIGITS = load("digits")
ARRAYS = (DIGITS.x_train, DIGITS.y_train, DIGITS.x_test, DIGITS.y_test)


def per_sample(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none", label_smoothing=0.1)


class Mine(FedAvg):
    """A method of a program's own."""


def module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def settings_of(folder: Path) -> str:
    return identity(read_config(folder), read_run(folder).held)


NAMED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"algorithm": "fedsmoo"}),
    ({"algorithm": FedSMOO(r=0.2), "clients": 6}, {"algorithm_options": {"r": 0.2}, "clients": 6}),
    ({"algorithm": FedSMOO(r=np.float64(0.2), sam=False)}, {"algorithm_options": {"r": 0.2, "sam": False}}),
    ({"partition": Dirichlet(0.3, replacement=False)}, {"partition": "dirichlet", "u": 0.3, "replacement": False}),
    ({"partition": Pathological(5)}, {"partition": "pathological", "c": 5}),
    ({"partition": IID()}, {"partition": "iid"}),
    ({"partition": "dirichlet-0.6", "algorithm": "scaffold"}, {"partition": "dirichlet-0.6", "algorithm": "scaffold"}),
    ({"data": "synthetic"}, {"dataset": "synthetic"}),
]


@pytest.mark.parametrize(("given", "same"), NAMED)
def test_what_settings_name_is_the_run_of_those_settings(
    given: dict[str, Any], same: dict[str, Any], tmp_path: Path
) -> None:
    stopped = fedsmoo.simulate("softmax", **given, **FEW, out=tmp_path / "mine", callback=lambda r: r.round < 2)
    assert (stopped.folder, stopped.summary, len(stopped.history)) == (tmp_path / "mine", None, 2)
    resumed = fedsmoo.resume(tmp_path / "mine")
    run = fedsmoo.run({"model": "softmax", **FEW, **same}, tmp_path / "run")
    assert settings_of(tmp_path / "mine") == settings_of(tmp_path / "run")
    assert (tmp_path / "mine" / MODEL).read_bytes() == (tmp_path / "run" / MODEL).read_bytes()
    assert (tmp_path / "mine" / CONFIG).read_text() == (tmp_path / "run" / CONFIG).read_text()
    assert resumed.accuracy == run.accuracy
    assert read_json(tmp_path / "mine" / STARTED)["again"] == read_json(tmp_path / "run" / STARTED)["again"]


HALVES = [np.arange(0, 400), np.arange(400, 900), np.arange(900, 1200)]
OBJECTS: list[tuple[dict[str, Any], str]] = [
    ({"model": module()}, "model"),
    ({"algorithm": Mine()}, "algorithm"),
    ({"data": ARRAYS}, "dataset"),
    ({"data": DIGITS}, "dataset"),
    ({"client_indices": HALVES}, "split"),
    ({"partition": lambda labels, classes, clients, seed: HALVES, "clients": 3}, "split"),
    ({"loss": per_sample}, "loss"),
    ({"sampling": lambda seed, number, clients, cohort: range(cohort)}, "sampling"),
]


@pytest.mark.parametrize(("given", "setting"), OBJECTS, ids=[f"{i}-{s}" for i, (_, s) in enumerate(OBJECTS)])
def test_what_no_setting_names_is_kept_under_a_name_of_its_own(
    given: dict[str, Any], setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"model": "softmax", **given}
    plain = fedsmoo.simulate(**given, **FEW)
    kept = fedsmoo.simulate(**given, **FEW, out=tmp_path / "run")
    assert kept.summary is not None
    assert kept.accuracy == plain.accuracy
    assert torch.equal(kept.server.w, plain.server.w)
    assert [r.round for r in read_run(tmp_path / "run").history] == [1, 2, 3]
    config = read_config(tmp_path / "run")
    assert list(objects_in(config)) == [setting]
    assert getattr(config, setting).startswith("python:")
    assert config.clients == len(kept.simulation.indices)
    usual = fedsmoo.Config(model="softmax", clients=config.clients, **FEW)
    assert settings_of(tmp_path / "run") != identity(usual)
    assert read_json(tmp_path / "run" / STARTED)["again"].startswith("python: ")
    for words in (["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")], ["runs", str(tmp_path)]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code, capsys.readouterr().err
    with pytest.raises(FedsmooError, match=rf"objects that no setting names \({setting} .*\): run it again"):
        fedsmoo.run(tmp_path / "run" / CONFIG, tmp_path / "again")


def test_objects_of_the_same_content_are_the_same_and_code_never_is(tmp_path: Path) -> None:
    def made(name: str, **given: Any) -> str:
        fedsmoo.simulate(**{"model": "softmax", **given}, **FEW, out=tmp_path / name)
        return settings_of(tmp_path / name)

    other = (DIGITS.x_train, DIGITS.y_train.roll(1), DIGITS.x_test, DIGITS.y_test)
    assert made("a", data=ARRAYS) == made("b", data=ARRAYS) != made("c", data=other)
    assert made("d", client_indices=HALVES) == made("e", client_indices=HALVES) != made("f", client_indices=HALVES[:2])
    assert made("g", model=module()) != made("h", model=module())


def test_a_stopped_run_of_objects_is_not_resumed_and_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    fedsmoo.simulate(module(), **FEW, out=tmp_path / "run", callback=lambda r: False)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != LOCK}
    with pytest.raises(FedsmooError, match=r"run is of a Python program .* \(model Sequential@[0-9a-f]+\)"):
        fedsmoo.resume(tmp_path / "run")
    with pytest.raises(FedsmooError, match="already holds a run"):
        fedsmoo.simulate(module(), **FEW, out=tmp_path / "run")
    after = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != LOCK}
    assert {p.name for p in after} == {p.name for p in before}
    assert all(after[p] == before[p] for p in before)
    assert (tmp_path / "run" / METRICS).read_text().count("\n") == 1
