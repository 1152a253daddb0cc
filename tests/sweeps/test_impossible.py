"""A run that is impossible is said before any of those beside it has begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsmoo
from fedsmoo import Config, FedsmooError, comparing
from fedsmoo.sweeps import cost
from fedsmoo.sweeps.grid import Cell

QUICK: dict[str, Any] = {"rounds": 1, "clients": 4, "cohort": 2, "local_steps": 1, "device": "cpu"}


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("fedprox:model=rsnet", "FedProx model=rsnet: unknown model 'rsnet'"),
        ("fedprox:model.hidden=0", "hidden of the model mlp is 0, but must be a whole number above 0"),
        ("fedprox:model=lenet", "need images of at least 16x16, not 8x8"),
        ("fedprox:loss=mse", "loss is 'mse', but the targets are classes"),
        ("fedprox:probe=hesian", "unknown probe 'hesian'"),
        ("fedper:head='zzz.*'", "unknown parameter 'zzz.*'"),
        ("fedprox:attack=gaussian,attack.attackers=9", "attackers is 9, but there are 4 clients"),
        ("fedprox:metrics=f1", "methods are compared by the same numbers; set metrics for all of them"),
        ("fedprox:eval_every=2", "methods are compared by the same numbers; set eval_every for all of them"),
    ],
)
def test_a_later_method_that_is_impossible_is_refused_before_the_first_trains(
    own: str, why: str, tmp_path: Path
) -> None:
    begun: list[Path] = []
    with pytest.raises(FedsmooError) as said:
        fedsmoo.compare(
            f"fedavg,{own}", out=tmp_path / "c", progress=False, begun=lambda c, p, n: begun.append(p), **QUICK
        )
    assert why in str(said.value)
    assert begun == []
    assert not (tmp_path / "c").exists()


def test_a_later_cell_of_a_sweep_too(tmp_path: Path) -> None:
    table = {"model": ["mlp", "lenet"], "algorithm": ["fedavg", "fedprox"], **QUICK}
    with pytest.raises(FedsmooError, match=r"^FedAvg: the model lenet cannot be built with these data"):
        fedsmoo.sweep(table, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_precision_of_gpus_is_possible_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether runs go together is found out on a CPU, which has no bf16."""
    monkeypatch.setattr(cost, "make_device", lambda name: torch.device("cuda"))
    config = Config(**{**QUICK, "device": "cuda", "precision": "bf16"})
    cost.refuse_impossible([Cell(config, "FedAvg", "")])


def test_data_that_cannot_be_read_is_what_its_run_says(tmp_path: Path) -> None:
    """It may lie there by then, and others go on."""
    (tmp_path / "mine.py").write_text("def data():\n    raise OSError('not mounted')\n")
    table = {"dataset": ["digits", f"{tmp_path / 'mine.py'}:data"], "algorithm": "fedavg", "partition": "iid", **QUICK}
    outcome = fedsmoo.sweep(table, tmp_path / "s", trust=True)
    assert (len(outcome.finished), len(outcome.failed)) == (1, 1)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"dataset": ["digits", "mine.py:date"]}, "date"),
        ({"dataset": "mine.py:data", "dataset_options": {"n": 3}}, "n"),
    ],
)
def test_data_that_a_file_does_not_have_are_refused_before_the_first_trains(
    own: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def data():\n    ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedsmooError, match=rf"(unknown|no) .*\b{says}\b"):
        fedsmoo.sweep({"partition": "iid", **QUICK, **own}, tmp_path / "s", trust=True)
    assert not (tmp_path / "s").exists()


def test_each_file_of_a_data_set_is_looked_at(tmp_path: Path) -> None:
    for name, n in (("many", 60), ("few", 10)):
        x, y = np.zeros((n, 32, 32, 3), np.uint8), np.arange(n) % 10
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    files = [str(tmp_path / f"{name}.npz") for name in ("many", "few")]
    table = {"dataset": "cifar10", "data": files, "partition": "iid", "model": "softmax", **QUICK, "clients": 30}
    with pytest.raises(FedsmooError, match="30 clients"):
        fedsmoo.sweep(table, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_objects_are_looked_at_before_the_first_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[Any] = []

    def simulate(**given: Any) -> Any:
        began.append(given["algorithm"])
        return fedsmoo.simulate(**given)

    monkeypatch.setattr(comparing, "simulate", simulate)
    both: dict[Any, Any] = {fedsmoo.FedAvg(): {}, "fedprox": {"model": "lenet"}}
    with pytest.raises(FedsmooError, match=r"^FedProx: the model lenet cannot be built"):
        fedsmoo.compare(both, out=None, progress=False, **QUICK)
    with pytest.raises(FedsmooError, match=r"^probe 'sharpness' must be NAME:ROUNDS"):  # it is all methods' own
        fedsmoo.compare([fedsmoo.FedAvg(), "fedprox"], out=None, progress=False, probe="sharpness", **QUICK)
    assert began == []
    fedsmoo.compare([fedsmoo.FedAvg(), "fedprox"], out=None, progress=False, **QUICK)
    assert began == ["fedavg", "fedprox"]
    with pytest.raises(FedsmooError, match="metrics is given for one method"):
        fedsmoo.compare({"fedavg": {}, "fedprox": {"metrics": "f1"}}, out=None, progress=False, **QUICK)
