"""Hyper-parameters and other options by name: simulate(algorithm="fedprox", mu=0.1)."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsmoo
from fedsmoo import FedProx, FedSMOO, Schedule
from fedsmoo.core.errors import FedsmooWarning

QUICK: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 2, "local_steps": 1, "device": "cpu"}


def weights(*given: Any, **settings: Any) -> torch.Tensor:
    return fedsmoo.simulate(*given, **{**QUICK, **settings}).server.w


def test_an_option_by_name_is_that_of_the_object() -> None:
    assert torch.equal(weights("softmax", "digits", "fedprox", mu=3), weights("softmax", "digits", FedProx(mu=3.0)))
    moving = Schedule(0.0, 0.2, 2)
    named = weights("softmax", "digits", "fedsmoo", r=moving, beta=5)
    assert torch.equal(named, weights("softmax", "digits", FedSMOO(r=moving, beta=5.0)))
    assert not torch.equal(named, weights("softmax", "digits", "fedsmoo"))


def test_options_of_models_and_of_what_is_around_a_method_work_alike() -> None:
    assert len(weights("mlp", "digits", "fedavg", hidden=7)) == 65 * 7 + 8 * 7 + 8 * 10  # two hidden layers
    given = {"compression": "topk", "compression_options": {"ratio": 0.25}}
    named = weights("softmax", algorithm="fedavg", compression="topk", ratio=0.25)
    assert torch.equal(named, weights("softmax", algorithm="fedavg", **given))


def test_a_run_by_names_is_the_one_of_the_command_line(tmp_path: Path) -> None:
    from fedsmoo.runs.storage.reader import read_run

    fedsmoo.simulate("softmax", "digits", "fedprox", mu=0.3, out=tmp_path / "a", **QUICK)
    fedsmoo.run(model="softmax", algorithm="fedprox", mu=0.3, out=tmp_path / "b", partition="dirichlet", **QUICK)
    assert read_run(tmp_path / "a").config.algorithm_options == {"mu": 0.3}
    assert read_run(tmp_path / "a").identity == read_run(tmp_path / "b").identity


def test_a_name_that_a_setting_has_too_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from fedsmoo import FedAvg, option

            @dataclass(frozen=True)
            class Mine(FedAvg):
                clip: float = option(1.0, "a number of its own")
            """
        )
    )
    name = f"{tmp_path / 'mine.py'}:Mine"
    with pytest.warns(FedsmooWarning, match="clip is a setting of every run, and a hyper-parameter of Mine, too"):
        clipped = fedsmoo.simulate("softmax", "digits", name, clip=0.01, **QUICK)
    assert clipped.simulation.setup.rule.clip == 0.01
    assert clipped.simulation.setup.algorithm.options()["clip"] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedsmoo.simulate("softmax", "digits", name, algorithm_options={"clip": 2.0}, **QUICK)
