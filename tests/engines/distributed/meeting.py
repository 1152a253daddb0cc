"""Ranks as threads of one process that meet at every collective call: all must make the same ones."""

from __future__ import annotations

import threading
from typing import Any

import torch
from patience import PATIENCE


class Meeting:
    """Where two ranks exchange what they bring to a collective call.

    Both fail where they make different ones: processes would wait for each other for ever.
    """

    def __init__(self) -> None:
        self.barrier, self.brought = threading.Barrier(2, timeout=PATIENCE), [("", None), ("", None)]

    def exchange(self, rank: int, call: str, value: Any) -> list[Any]:
        self.brought[rank] = call, value
        self.barrier.wait()
        there = list(self.brought)
        self.barrier.wait()
        assert {name for name, _ in there} == {call}, f"rank {rank} is at {call!r}, but they are at {there}"
        return [value for _, value in there]


class Thread:
    """A rank of the job."""

    world = 2

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.meeting = rank, meeting

    def broadcast_object(self, value: Any) -> Any:
        return self.meeting.exchange(self.rank, "same", value)[0]

    def gather_objects(self, value: Any) -> list[Any]:
        return self.meeting.exchange(self.rank, "objects", value)

    def union(self, values: set[int]) -> set[int]:
        return set.union(*self.meeting.exchange(self.rank, "union", values))

    def broadcast(self, v: torch.Tensor, source: int) -> torch.Tensor:
        return self.meeting.exchange(self.rank, f"share of {source}", v)[source]

    def all_reduce(self, v: torch.Tensor) -> torch.Tensor:
        first, second = self.meeting.exchange(self.rank, "sum", v.clone())
        return first + second
