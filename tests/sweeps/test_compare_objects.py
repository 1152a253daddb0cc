"""Comparisons with objects of a program: methods of its own, modules and data, in memory; tables and curves of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsmoo
from fedsmoo import Config, FedAvg, FedProx, FedsmooError, Vectors, comparing
from fedsmoo.core.algorithm import Gradient
from fedsmoo.runs.storage.reader import read_run

QUICK: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 3, "local_steps": 2, "device": "cpu"}


@dataclass(frozen=True)
class Halved(FedAvg):
    """Local steps of half the length."""

    by: float = 2.0

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return grad(w) / self.by, me


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_methods_of_a_program_are_compared_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = fedsmoo.compare([FedAvg(), Halved(), Halved(by=4.0), "fedprox:mu=0.5"], [0, 1], model=network(), **QUICK)
    assert list(found.runs) == ["FedAvg", "Halved", "Halved by=4.0", "FedProx mu=0.5"]
    assert [row.seeds for row in found.rows] == [2, 2, 2, 2]
    assert not list(tmp_path.iterdir())  # nothing is written
    engine = found.result("FedAvg").simulation.engine.name
    for label, method in {"Halved by=4.0": Halved(by=4.0), "FedProx mu=0.5": FedProx(mu=0.5)}.items():
        alone = fedsmoo.simulate(network(), "digits", method, seed=1, engine=engine, **QUICK)
        assert torch.equal(found.result(label, 1).server.w, alone.server.w)
    assert set(found.frame["method"]) == set(found.runs)
    with pytest.raises(FedsmooError, match="did you mean 'Halved'"):
        found.result("Halve")
    with pytest.raises(FedsmooError, match="has no finished run of seed 7"):
        found.result("FedAvg", 7)


def test_names_alone_stay_in_memory_if_asked_to() -> None:
    found = fedsmoo.compare("fedavg,fedprox", out=None, model="softmax", dataset="digits", **QUICK)
    assert found.out is None
    assert isinstance(found.result("FedProx"), fedsmoo.Result)
    assert "FedProx" in str(found)
    axes = found.plot("train_loss")
    ours = [r.train_loss for r in found.result("FedProx").history]
    assert list(axes.lines[1].get_ydata()) == ours
    html = found._repr_html_()
    assert html.count("<tr>") == 3
    assert "<th " in html


def test_objects_may_be_kept_in_a_folder(tmp_path: Path) -> None:
    fedsmoo.compare([FedAvg(), Halved()], out=tmp_path / "c", model="softmax", **QUICK)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["fedavg-seed0", "halved-seed0"]
    assert read_run(tmp_path / "c" / "halved-seed0").config.algorithm.startswith("python:Halved@")


def test_without_seeds_the_config_s_is_taken_in_memory_too() -> None:
    for seeds, taken in ((None, [5]), ([1], [1])):
        found = fedsmoo.compare("fedavg", seeds, Config(seed=5, model="softmax"), out=None, **QUICK)
        assert [*found.runs["FedAvg"]] == taken


def test_runs_in_folders_give_results_tables_and_curves(tmp_path: Path) -> None:
    found = fedsmoo.compare("fedavg,fedprox:mu=0.5", "0,1", out=tmp_path / "c", model="softmax", **QUICK)
    loaded = found.result("FedProx mu=0.5", 1)
    assert [r.train_loss for r in loaded.history] == [r.train_loss for r in found.histories["FedProx mu=0.5"][1]]
    assert loaded.continue_(1).history[-1].round == 4
    assert len(found.plot().lines) == 2
    assert found.table[1].split()[0] in found._repr_html_()


def test_one_that_fails_and_an_interrupt_leave_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fedsmoo.compare([FedAvg(), Halved(by=1e-44)], out=None, model="softmax", clip=None, **QUICK)
    assert list(found.runs) == ["FedAvg"]
    assert "no longer finite" in str(found)
    begun: list[str] = []
    one_run = comparing.one_run
    monkeypatch.setattr(comparing, "one_run", lambda *given: begun.append(given[-1]) or one_run(*given))

    class Impatient(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(begun) > 1:
                raise KeyboardInterrupt
            return super().forward(x.flatten(1))

    part = fedsmoo.compare("fedavg,fedsam,fedprox", model=Impatient(64, 10), engine="serial", **QUICK)
    assert (begun, [*part.runs]) == (["FedAvg", "FedSAM"], ["FedAvg"])
    assert [path.name for path in part.outcome.left] == ["fedsam-seed0", "fedprox-seed0"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seed": 3}, "seed is given, but a comparison takes its seeds from seeds"),
        ({"algorithm": "fedavg"}, "algorithm is given, but a comparison takes its algorithms"),
        ({"algorithms": [Halved(), Halved()]}, "names 'Halved' twice"),
        ({"algorithms": [Halved], "model": "softmax"}, "write Halved()"),
    ],
)
def test_what_a_comparison_of_objects_refuses(given: dict[str, Any], says: str) -> None:
    with pytest.raises(FedsmooError) as e:
        fedsmoo.compare(**{"algorithms": [FedAvg()], "model": network(), **QUICK, **given})
    assert says in str(e.value)


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        ({"partition": "iid"}, "methods are compared on the same data; set partition for all of them"),
        ({"clients": 3}, "methods are compared on the same data; set clients for all of them"),
        ({"seed": 3}, "a comparison takes its seeds from --seeds"),
        ({"algorithm": "fedavg"}, "a comparison takes its algorithms from --algorithms"),
        ({"client_indices": [[0], [1]]}, "client_indices is given for fedprox, but is of the whole comparison"),
        ({"callback": print}, "callback is given for fedprox, but is of the whole comparison"),
    ],
)
def test_rows_in_memory_differ_in_the_method_alone(mine: dict[str, Any], says: str) -> None:
    with pytest.raises(FedsmooError, match=says):
        fedsmoo.compare({"fedavg": {}, "fedprox": mine}, out=None, model="softmax", **QUICK)


def test_a_hyper_parameter_for_all_is_of_all_in_memory_too() -> None:
    """The row of the method without one was left out, and nobody said so."""
    with pytest.raises(FedsmooError, match="mu is a hyper-parameter of fedprox, but not of fedavg"):
        fedsmoo.compare("fedavg,fedprox", out=None, model="softmax", mu=0.1, **QUICK)
