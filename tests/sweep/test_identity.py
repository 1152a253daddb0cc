"""Which configs are the same run."""

from __future__ import annotations

import pytest

from fedsmoo.experiment.config import Config
from fedsmoo.experiment.identity import differences, identity
from fedsmoo.experiment.sweep import run_name


@pytest.mark.parametrize(
    "same",
    [
        {"device": "cuda:1"},
        {"engine": "serial"},
        {"target": 0.5},
        {"local_epochs": 5},
        {"partition": "dirichlet-0.1"},
        {"algorithm_options": {"beta": 10}},
        {"algorithm": "FedSMOO"},
        {"table": "host"},
    ],
)
def test_what_does_not_change_a_run(same: dict) -> None:
    assert identity(Config(**same)) == identity(Config())
    assert run_name(Config(**same)) == run_name(Config())


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"lr": 0.2},
        {"local_steps": 5},
        {"partition": "dirichlet-0.6"},
        {"u": 0.6},
        {"algorithm_options": {"beta": 1}},
        {"algorithm": "feddyn"},
        {"clip": None},
        {"dtype": "float64"},
        {"model_options": {"hidden": 32}},
        {"precision": "bf16"},
    ],
)
def test_what_makes_another_run(other: dict) -> None:
    assert identity(Config(**other)) != identity(Config())
    assert run_name(Config(**other)) != run_name(Config())


def test_a_partition_means_the_same_however_it_is_written() -> None:
    assert identity(Config(partition="pathological", c=6)) == identity(Config(partition="pathological-6"))
    assert identity(Config(partition="pathological-6", u=0.7)) == identity(Config(partition="pathological-6"))


def test_differences_are_in_words() -> None:
    assert differences(Config(), Config(lr=0.2)) == ["lr was 0.1, is 0.2"]
