"""The client table of a job, with its ranks as threads that meet at every call: all must make the same ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from patience import PATIENCE

from fedsmoo.core import Vectors
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.distributed.engine import ShardedTable


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

    def union(self, values: set[int]) -> set[int]:
        return set.union(*self.meeting.exchange(self.rank, "union", values))

    def broadcast(self, v: torch.Tensor, source: int) -> torch.Tensor:
        return self.meeting.exchange(self.rank, f"share of {source}", v)[source]


def test_rank_0_asks_for_rows_and_changes_while_the_others_wait_for_a_round() -> None:
    meeting, like = Meeting(), Vectors(a=torch.zeros(3))

    def rank(number: int) -> tuple[list[set[int]], dict[int, list[float]]]:
        inner = ClientTable(("a",))
        mine = [i for i in range(5) if i % 2 == number]
        inner.write(mine, Vectors(a=torch.tensor([[float(i)] * 3 for i in mine])))
        table = ShardedTable(inner, Thread(number, meeting), like)
        changes, rows = [], {}
        if number == 0:
            changes = [table.take_changes(), table.take_changes()]
            rows = {i: row["a"].tolist() for i, row in table.items()}
        table.agree("round")
        return changes, rows

    with ThreadPoolExecutor(2) as pool:
        (changes, rows), _ = pool.map(rank, range(2))
    assert changes == [{0, 1, 2, 3, 4}, set()]
    assert rows == {i: [float(i)] * 3 for i in range(5)}
