"""Schedules: their values in closed form, their text, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest

from fedsmoo import FedAvg, FedProx, FedSMOO, FedsmooError, Relaxed, Schedule, option


def values(schedule: Schedule, *rounds: int) -> list[float]:
    return [schedule(t) for t in rounds]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(1.0, 3.0, 4), [1.0, 1.5, 2.0, 2.5, 3.0, 3.0]),
        (Schedule(1.0, 3.0, 4, "cosine"), [1.0, 2 - math.sqrt(0.5), 2.0, 2 + math.sqrt(0.5), 3.0, 3.0]),
        (Schedule(16.0, 1.0, 4, "exponential"), [16.0, 8.0, 4.0, 2.0, 1.0, 1.0]),
        (Schedule(-16.0, -1.0, 4, "exponential"), [-16.0, -8.0, -4.0, -2.0, -1.0, -1.0]),
        (Schedule(1.0, steps={2: 0.5, 4: 0.0}), [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]),
        (Schedule(4.0, warmup=4), [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]),
        (Schedule(4.0, 0.0, 4, warmup=2), [2.0, 4.0, 4.0, 2.0, 0.0, 0.0]),
        (Schedule(4.0, steps={2: 1.0}, warmup=2), [2.0, 4.0, 1.0, 1.0, 1.0, 1.0]),
    ],
    ids=str,
)
def test_values(schedule, expected):
    assert values(schedule, *range(6)) == pytest.approx(expected, rel=1e-15, abs=1e-15)
    low, high = schedule.extremes
    assert low == min(expected)
    assert high == max(expected)


def test_ends_are_exact_and_no_value_is_beyond_them():
    for last in (0.1, 0.3, 0.7, 1e-7):
        for shape in ("linear", "cosine", "exponential"):
            found = values(Schedule(0.9, last, 97, shape), *range(120))
            assert found[0] == 0.9
            assert {*found[97:]} == {last}
            assert all(last <= b <= a for a, b in pairwise(found))


TEXTS = [
    "linear:0:0.1:200", "cosine:0.1:1e-05:200", "exponential:1:0.001:50", "steps:0.1:100:0.05:150:0.01",
    "warmup:20:0.1", "warmup:20:cosine:0.1:0:200", "warmup:5:steps:0.1:10:0.2",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text):
    found = Schedule.read(text)
    assert str(found) == text
    assert Schedule.read(str(found)) == found
    assert hash(Schedule.read(text)) == hash(found)


def test_numbers_keep_their_bits_in_text():
    odd = Schedule(0.1 + 0.2, 1 / 3, 7)
    assert Schedule.read(str(odd)) == odd


def test_tables_spell_the_same():
    read = Schedule.read
    assert read({"from": 0, "to": 0.1, "rounds": 200, "shape": "cosine"}) == read("cosine:0:0.1:200")
    assert read({"from": 0.1, "steps": {"100": 0.05, "150": 0.01}}) == read("steps:0.1:100:0.05:150:0.01")
    assert read({"from": 0.1, "steps": [[100, 0.05]]}) == Schedule(0.1, steps={100: 0.05})
    assert read({"from": 0.1, "warmup": 20}) == read("warmup:20:0.1")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cosin:0:1:5", "is no schedule: write linear:FROM:TO:ROUNDS"),
        ("cosine:0:1", "is no schedule"),
        ("steps:0.1:5", "is no schedule"),
        ("warmup:5:warmup:5:1", "is no schedule"),
        ("linear:a:1:5", "'a' is not a finite number"),
        ("linear:0:inf:5", "'inf' is not a finite number"),
        ("linear:0:1:2.5", "'2.5' is not a number of rounds"),
        ("linear:0:1:0", "rounds is 0, but must be above 0"),
        ("warmup:9:linear:0:1:9", "must be above 9, the rounds of the warm-up"),
        ("exponential:0:1:5", "two numbers above 0, or two below 0"),
        ("steps:1:5:2:5:3", "rounds must rise"),
        ("warmup:5:steps:1:3:2", "rounds must rise, and begin after round 4"),
        ({"to": 1, "rounds": 5}, "says where it starts"),
        ({"from": 0, "to": 1, "round": 5}, "did you mean 'rounds'"),
        ({"from": 0, "to": 1}, "rounds: None is not a finite number"),
        ({"from": 0, "to": 1, "rounds": 5, "shape": "cos"}, "shape of a schedule"),
        ({"from": 0}, "needs the value that it goes to"),
        ({"from": 0, "rounds": 5}, "needs the value that it goes to"),
        ({"from": 0, "to": 1, "rounds": 5, "steps": {"1": 2}}, "not both"),
        ({"from": 0, "steps": 5}, "steps is 5, but must be values by rounds"),
        ({"from": True, "warmup": 2}, "True is not a finite number"),
    ],
)
def test_what_is_no_schedule_is_refused(value, message):
    with pytest.raises(FedsmooError, match=message) as e:
        Schedule.read(value)
    assert "\n" not in str(e.value)


def test_extremes_must_lie_within_the_range_of_the_hyper_parameter():
    with pytest.raises(FedsmooError, match=r"mu \(linear:0.1:-0.2:5\) is -0.2, but must be at least 0"):
        FedProx(mu=Schedule(0.1, -0.2, 5))
    with pytest.raises(FedsmooError, match=r"lr_server \(steps:1:3:0\) is 0.0, but must be above 0"):
        FedAvg(lr_server=Schedule(1.0, steps={3: 0.0}))
    assert FedAvg(lr_server=Schedule(1.0, warmup=10)).at(0).lr_server == 0.1  # a warm-up is never at 0


@dataclass(frozen=True)
class Counting(FedAvg):
    k: int = option(3, "how many", within="[1, inf)")
    word: str = option("a", "which", ("a", "b"))
    on: bool = option(True, "whether")


def test_only_numbers_are_scheduled_and_whole_ones_stay_whole():
    found = Counting(k=Schedule(4, steps={2: 2})).at(2).k
    assert (found, type(found)) == (2, int)
    for wrong in ({"k": Schedule(4, 2, 2)}, {"k": Schedule(4, warmup=2)}, {"on": Schedule(1, 0, 2)}):
        with pytest.raises(FedsmooError, match="must be"):
            Counting(**wrong)
    with pytest.raises(FedsmooError, match="word is linear:1:0:2, but must be text"):
        Counting(word=Schedule(1, 0, 2))


def test_at_resolves_also_what_is_inside_and_leaves_others_alone():
    plain = FedSMOO()
    assert plain.at(5) is plain
    assert Relaxed(plain, 0.1).at(5) == Relaxed(plain, 0.1)
    method = Relaxed(FedSMOO(r=Schedule(0.0, 1.0, 10)), Schedule(0.5, 0.0, 5))
    assert method.at(5) == Relaxed(FedSMOO(r=0.5), 0.0)
    assert method.at(1) == Relaxed(FedSMOO(r=0.1), 0.4)
