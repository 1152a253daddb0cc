"""A method that keeps something outside of its vectors is refused: neither engines nor resumed runs would agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from fedsmoo import FedAvg, Vectors
from fedsmoo.core import FedsmooError
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.contract.kept import snapshot

HISTORY: list[int] = []
COUNT = 0


class Box:
    def __init__(self) -> None:
        self.calls = 0


BOX, MEMO = Box(), dict[Any, Any]()


@dataclass(frozen=True)
class InFile(FedAvg):
    def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
        HISTORY.append(1)
        return me, Vectors(w=w if len(HISTORY) < 1000 else 2 * w)


@dataclass(frozen=True)
class Counting(FedAvg):
    def aggregate(self, srv: Any, mean: Any, rnd: Any) -> Any:
        global COUNT
        COUNT += 1
        return super().aggregate(srv, mean, rnd)


@dataclass(frozen=True)
class InObject(FedAvg):
    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        BOX.calls += 1
        return grad(w), me


@dataclass(frozen=True)
class OnClass(FedAvg):
    seen: ClassVar[dict[int, int]] = {}

    def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
        self.seen[len(self.seen)] = 1
        return me, Vectors(w=w)


@dataclass(frozen=True)
class InField(FedAvg):
    past: Any = field(default_factory=list)

    def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
        self.past.append(1)
        return me, Vectors(w=w)


def closing() -> FedAvg:
    count = [0]

    @dataclass(frozen=True)
    class InClosure(FedAvg):
        def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
            count[0] += 1
            return me, Vectors(w=w)

    return InClosure()


@dataclass(frozen=True)
class Memo(FedAvg):
    """Computes something once: the same question finds it as it was."""

    def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
        key = w.shape[-1], w.dtype
        if key not in MEMO:
            MEMO[key] = torch.linspace(0, 1, w.shape[-1], dtype=w.dtype)
        return me, Vectors(w=w)


@pytest.mark.parametrize(
    ("method", "line", "where"),
    [
        (InFile(), "in finish", "HISTORY"),
        (Counting(), "in aggregate", "COUNT"),
        (InObject(), "in slope", "BOX"),
        (OnClass(), "in finish", "OnClass.seen"),
        (InField(), "in finish", "self.past"),
        (closing(), "in finish", "count"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, FedAvg) else "",
)
def test_what_is_kept_is_named(method: FedAvg, line: str, where: str) -> None:
    with pytest.raises(FedsmooError, match=rf"test_kept.py:\d+ {line}: keeps something in {where} from one call"):
        refuse_unsound(method)


ONCE = {"w": 1.0}


@dataclass(frozen=True)
class UsedUp(FedAvg):
    """Fails from its second call on."""

    def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
        return me, Vectors(w=ONCE.pop("w") * w)


def test_what_only_the_second_call_does_is_named() -> None:
    with pytest.raises(FedsmooError, match=r"^\S*test_kept.py:\d+ in finish: KeyError: 'w'$"):
        refuse_unsound(UsedUp())


def test_what_was_computed_once_may_be_kept() -> None:
    refuse_unsound(Memo())
    assert MEMO


class Wordless:
    def __repr__(self) -> str:
        raise ValueError("there is no text for this")


THINGS = [Wordless()]


@dataclass(frozen=True)
class Wordlessly(FedAvg):
    def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
        return me, Vectors(w=w * len(THINGS))


def test_what_has_no_text_is_let_be() -> None:
    refuse_unsound(Wordlessly())


# -- tables

TABLE, ROWS = list(range(50_000)), [0] * 50_000


@dataclass(frozen=True)
class Reading(FedAvg):
    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w) * TABLE[1], me


@dataclass(frozen=True)
class Writing(FedAvg):
    """Has a row of a table for each client."""

    def finish(self, w: Any, down: Any, me: Any, rnd: Any) -> Any:
        ROWS[11] += 1
        return me, Vectors(w=w)


def test_a_long_table_is_compared_by_its_begin_and_its_length() -> None:
    """The text of all of it was made dozens of times."""
    assert len(snapshot(TABLE)) < 10_000
    assert snapshot(dict.fromkeys(TABLE)) != snapshot(dict.fromkeys([*TABLE, -1]))
    refuse_unsound(Reading())
    with pytest.raises(FedsmooError, match=r"in finish: keeps something in ROWS from one call for the next"):
        refuse_unsound(Writing())
