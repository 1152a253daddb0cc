"""Batches that come through the ring, without a device: what copies and steps touch is in order, by streams and events.

Host, streams and events are a model: each knows what it has behind it, as a set of bits, and what touches the same
memory, one of them writing, must know of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedsmoo.engines.steps.staging import SLOTS, Ring

Place = tuple[str, int]  # memory, and the slot in it


@dataclass
class Order:
    """What the host and streams have behind them, and what was done, in the order of the host's calls."""

    behind: dict[str, int] = field(default_factory=dict)
    done: list[tuple[dict[Place, bool], int]] = field(default_factory=list)  # what is touched, and whether written
    stream: str = "main"
    waits: int = 0
    without: int | None = None  # the wait that is left out

    def known(self, who: str) -> int:
        return self.behind.get(who, 0) | self.behind.get("host", 0)  # calls come after what the host has waited for

    def do(self, who: str, touched: dict[Place, bool]) -> None:
        self.done.append((touched, self.known(who)))
        self.behind[who] = self.known(who) | 1 << (len(self.done) - 1)

    def wait(self, who: str, event: int, left_out: bool = True) -> None:
        self.waits += left_out
        if not left_out or self.waits - 1 != self.without:
            self.behind[who] = self.known(who) | event

    def event(self, who: str) -> SimpleNamespace:
        behind = self.known(who)
        return SimpleNamespace(behind=behind, synchronize=lambda: self.wait("host", behind))

    def named(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(
            name=name, record_event=lambda: self.event(name), wait_event=lambda e: self.wait(name, e.behind)
        )

    @contextmanager
    def on(self, stream: SimpleNamespace) -> Iterator[None]:
        before, self.stream = self.stream, stream.name
        yield
        self.stream = before

    def unordered(self) -> list[tuple[int, int]]:
        """What touches the same memory and does not know of each other."""
        pairs = ((i, j) for j in range(len(self.done)) for i in range(j))
        return [(i, j) for i, j in pairs if clash(self.done[i][0], self.done[j][0]) and not self.done[j][1] >> i & 1]


def clash(a: dict[Place, bool], b: dict[Place, bool]) -> bool:
    return any(place in b and (written or b[place]) for place, written in a.items())


class Memory(torch.Tensor):
    """Slots in pinned memory or on the device, whose copies are noted."""

    order: Order
    label: str
    whole: torch.Tensor

    def record_stream(self, stream: Any) -> None:
        pass

    def slot(self) -> Place:
        return self.label, (self.data_ptr() - self.whole.data_ptr()) // self.whole[0].nbytes

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = super().__torch_function__(func, types, args, kwargs)
        into = kwargs.get("out", args[0])
        if func is torch.index_select:  # by the host, from the data
            into.order.do("host", {into.slot(): True})
        elif func is torch.Tensor.copy_:
            into.order.do(into.order.stream, {into.slot(): True, args[1].slot(): False})
        elif isinstance(found, Memory) and isinstance(into, Memory) and hasattr(into, "label"):  # a view
            found.order, found.label, found.whole = into.order, into.label, into.whole
        return found


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch):
    """``rounds(lengths, ahead, without)``: carry out rounds of so many steps, two at a time; return what was done."""

    def carried_out(lengths: list[int], ahead: bool, without: int | None = None) -> Order:
        order, made = Order(without=without), []

        class OnHost(Ring):
            @staticmethod
            def _room(like, shape, device=None, pin=False):
                room = torch.zeros(SLOTS, *shape, *like.shape[1:], dtype=like.dtype).as_subclass(Memory)
                room.order, room.label, room.whole = order, f"{'pinned' if pin else 'device'} {len(made)}", room
                made.append(room)
                return room

        monkeypatch.setattr(torch.cuda, "Stream", lambda device: order.named("copies"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: order.named(order.stream))
        monkeypatch.setattr(torch.cuda, "stream", order.on)
        data = SimpleNamespace(x_train=torch.zeros(9, 2), y_train=torch.arange(9))
        ring = OnHost(SimpleNamespace(data=data, device=SimpleNamespace(type="cuda")), 2, 3)  # type: ignore[arg-type]
        for steps in lengths:
            ring.begin(torch.zeros(steps, 2, 3, dtype=torch.int64))
            order.wait("steps", order.known("main"), left_out=False)
            loads = [1] * ahead + [2] * (steps // 2) + [1] * (steps % 2)  # ahead: the last one is of no batch
            ends = accumulate(loads, initial=0)
            with order.on(order.named("steps")):
                for first, end in pairwise(ends):
                    ring.need(first, end)
                    for k in range(first, end):
                        order.do("steps", {(r.label, k % SLOTS): False for r in made if "device" in r.label})
                    ring.ahead()
            order.wait("main", order.known("steps"), left_out=False)
        return order

    return carried_out


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("lengths", [[1, 1], [2, 9], [5, 3, 8]], ids=str)
def test_no_slot_is_written_while_it_is_read_or_read_before_it_is_written(lengths, ahead, rounds):
    order = rounds(lengths, ahead)
    assert sum(len(touched) == 2 and True in touched.values() for touched, _ in order.done) == 2 * sum(lengths)
    assert not order.unordered()


def test_most_waits_are_needed_for_that(rounds):
    """Others are for an event that a later one of the same stream says as well."""
    waits = rounds([5, 9], True).waits
    assert sum(bool(rounds([5, 9], True, without).unordered()) for without in range(waits)) > waits // 2
