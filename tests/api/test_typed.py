"""Objects print as one would type them, and what they print makes them again."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

import fedsmoo
from fedsmoo import ALGORITHMS, IID, Algorithm, Config, Dirichlet, FedAvg, FedProx, FedSMOO, Pathological, Schedule
from fedsmoo.data.division.partition import PARTITIONS

NAMES = {n: getattr(fedsmoo, n) for n in fedsmoo.__all__}


@pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=lambda c: c.__name__)
def test_methods_print_as_one_would_type_them(cls: type[Algorithm]) -> None:
    plain = cls(FedAvg()) if any(f.name == "inner" and f.default is not None for f in fields(cls)) else cls()
    assert repr(cls()) == f"{cls.__name__}()"
    assert eval(repr(plain), NAMES) == plain
    numbers = [f for f in fields(cls) if isinstance(f.default, float)]
    for f in numbers:
        value = next(v for v in (0.25, 0.5, 1.5, 2.0) if allowed(cls, f.name, v) and v != f.default)
        changed = cls(**{f.name: value})
        assert repr(changed) == f"{cls.__name__}({f.name}={value!r})"
        assert eval(repr(changed), NAMES) == changed != plain


def allowed(cls: type[Algorithm], name: str, value: float) -> bool:
    try:
        cls(**{name: value})
    except fedsmoo.FedsmooError:
        return False
    return True


def test_methods_in_methods_schedules_and_methods_of_ones_own() -> None:
    inside = fedsmoo.Relaxed(FedProx(mu=0.3), b=0.5)
    assert eval(repr(inside), NAMES) == inside
    moving = FedSMOO(r=Schedule(0.0, 0.1, 200, "cosine"))
    assert repr(moving) == "FedSMOO(r=Schedule(first=0.0, last=0.1, rounds=200, shape='cosine'))"
    assert eval(repr(moving), NAMES) == moving

    @dataclass(frozen=True)
    class Mine(FedAvg):
        k: float = 1.0

    assert repr(Mine(k=2.0)) == "Mine(k=2.0)"
    assert Mine(k=2.0) == Mine(k=2.0) != Mine()


@pytest.mark.parametrize("rule", [IID(), Dirichlet(), Dirichlet(0.3, replacement=False), Pathological(c=2)])
def test_partitions_print_as_one_would_type_them(rule: Any) -> None:
    assert eval(repr(rule), NAMES) == rule
    assert repr(Dirichlet(0.3)) == "Dirichlet(u=0.3)"
    assert {repr(cls()) for cls in PARTITIONS.values()} == {f"{cls.__name__}()" for cls in PARTITIONS.values()}


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(1.0, warmup=3),
        Schedule(1.0, 0.0, 10),
        Schedule(1.0, steps={2: 0.5}),
        Schedule(1.0, 0.1, 9, "exponential", 2),
    ],
    ids=str,
)
def test_schedules_print_as_one_would_type_them(schedule: Schedule) -> None:
    assert eval(repr(schedule), NAMES) == schedule
    assert Schedule.read(str(schedule)) == schedule


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(algorithm="fedprox", lr=0.3, algorithm_options={"mu": 0.1}),
        Config(dataset="synthetic", clip=None, local_steps=3),
        Config(algorithm_options={"r": Schedule(0.0, 0.1, 9)}, privacy="client", privacy_options={"noise": 0.5}),
        Config(partition="iid", loss="mse", augment=False, weighted=True),
    ],
    ids=lambda c: repr(c)[:40],
)
def test_configs_round_trip(config: Config) -> None:
    assert eval(repr(config), NAMES) == config
    assert Config(**config.to_dict()) == config
    assert hash(repr(config)) == hash(repr(Config(**config.to_dict())))


def test_a_config_prints_what_was_chosen() -> None:
    assert repr(Config()) == "Config()"
    assert repr(Config(lr=0.3, algorithm="fedavg")) == "Config(lr=0.3, algorithm='fedavg')"
    assert repr(Config(dataset="synthetic")) == "Config(dataset='synthetic')"
