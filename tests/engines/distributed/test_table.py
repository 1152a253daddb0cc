"""The client table of a job, with its ranks as threads that meet at every call: all must make the same ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.distributed.engine import ShardedTable

from .meeting import Meeting, Thread


def test_ranks_that_are_at_different_rounds_say_so() -> None:
    meeting = Meeting()

    def rank(number: int) -> str:
        table = ShardedTable(ClientTable(()), Thread(number, meeting), Vectors())
        try:
            table.agree(f"round 3 of clients 1, {4 + number}")
        except FedsmooError as e:
            return str(e)
        return ""

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    assert first == ""  # it is in the round, and finds the connection broken
    assert second == "rank 1 waits for 'round 3 of clients 1, 5', but rank 0 is at 'round 3 of clients 1, 4'"


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
