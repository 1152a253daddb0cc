"""Setting after setting: whether another value makes another run, and another line of a table."""

from __future__ import annotations

import pytest

from fedsmoo.pages.groups import add_groups
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin.identity import canonical, differences, identity
from fedsmoo.sweeps.grid import run_name

# Another value than the default for every setting there is; a new setting needs a line here or in MACHINE.
OTHER = {
    "rounds": 7, "cohort": 3, "sampling": "bernoulli", "local_epochs": 2, "local_steps": 4, "batch_size": 8, "lr": 0.2,
    "lr_decay": 0.5, "weight_decay": 0.0, "clip": 1.0, "clip_scope": "released", "weighted": True, "relaxed": 0.1,
    "wire": "int8", "augment": True, "seed": 1, "eval_every": 2, "algorithm": "feddyn",
    "algorithm_options": {"beta": 3.0}, "model": "softmax", "model_options": {"hidden": 9}, "dataset": "cifar10",
    "partition": "iid", "u": 0.7, "replacement": False, "refill": True, "split": "a.json", "clients": 40,
    "precision": "bf16", "dtype": "float64", "holdout": 0.2, "loss": "a.py:loss", "loss_options": {"g": 1},
    "dataset_options": {"g": 1}, "partition_options": {"g": 1}, "sampling_options": {"g": 1},
    "local_optimizer": "adam", "local_optimizer_options": {"momentum": 0.5}, "local_schedule": "cosine",
    "local_schedule_options": {"end": 0.5}, "privacy": "client", "privacy_options": {"noise": 2.0},
    "compression": "sign", "compression_options": {"ratio": 0.5}, "attack": "alie", "attack_options": {"attackers": 3},
    "output": "logits", "start": "a.safetensors", "start_skip": "fc.*", "statistics": "local", "metrics": "f1",
}  # fmt: skip
# What says where and how fast a run goes, or what is written down of it; c is of a partition that is not the default's.
MACHINE = {
    "engine": "serial", "exact": True, "chunk": 2, "table": "host", "device": "cpu", "data": "here.npz", "target": 0.5,
    "probe": "sharpness:5", "c": 5, "samples_in": "host",
}  # fmt: skip
# What may differ between the seeds that a report takes the mean of.
INCIDENTAL = {
    "seed", "device", "engine", "chunk", "table", "exact", "target", "data", "probe", "samples_in",
}  # fmt: skip


def test_no_setting_is_forgotten() -> None:
    assert set(OTHER) | set(MACHINE) == set(FIELDS)
    assert not set(OTHER) & set(MACHINE)


@pytest.mark.parametrize("name", OTHER)
def test_another_value_is_another_run(name: str) -> None:
    usual, other = Config(), Config(**{name: OTHER[name]})
    assert identity(other) != identity(usual)
    assert run_name(other) != run_name(usual)
    assert canonical(other) != canonical(usual)
    assert differences(usual, other)


def test_any_two_of_these_runs_differ() -> None:
    assert len({identity(Config(**{name: value})) for name, value in OTHER.items()}) == len(OTHER)


@pytest.mark.parametrize("name", MACHINE)
def test_another_machine_is_the_same_run(name: str) -> None:
    assert identity(Config(**{name: MACHINE[name]})) == identity(Config())


def test_of_a_pathological_partition_the_number_of_classes_counts() -> None:
    assert identity(Config(partition="pathological", c=5)) != identity(Config(partition="pathological", c=3))


@pytest.mark.parametrize("name", sorted({*OTHER, *MACHINE} - {"seed", "algorithm_options", "model_options"}))
def test_only_seeds_and_machines_are_averaged_over(name: str) -> None:
    """Two seeds of one setting and a third run with another value: it joins them where the setting is incidental."""
    config = {n: str(f.default) for n, f in FIELDS.items()}
    value = str(OTHER.get(name, MACHINE.get(name)))
    runs = [{"method": "FedSMOO", "config": {**config, "seed": seed}} for seed in ("0", "1", "2")]
    runs[2]["config"][name] = value
    lines = [(r["task"], r["group"]) for r in add_groups(runs)]
    assert lines[0] == lines[1]
    assert (lines[2] == lines[0]) == (name in INCIDENTAL)


def test_options_of_methods_are_not_averaged_over() -> None:
    runs = [
        {"method": "FedSMOO", "config": {"seed": seed, "algorithm.r": r}}
        for seed, r in (("0", "0.1"), ("1", "0.1"), ("2", "0.2"))
    ]
    assert [r["group"] for r in add_groups(runs)] == ["FedSMOO (r=0.1)"] * 2 + ["FedSMOO (r=0.2)"]
    assert [r["group"] for r in add_groups(runs, over="algorithm.r")] == ["FedSMOO"] * 3
