"""The client table: every client's own vectors between rounds.

Clients never met have no row; theirs are made, at first contact, from what they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedsmoo.core import Vectors


class ClientTable:
    """Own-state rows ``{name: [P]}`` by client, in the memory of one device."""

    sharded = False  # whether other processes hold rows of this table

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.rows: dict[int, dict[str, Tensor]] = {}
        self.changed: set[int] = set()  # since the last call of take_changes: what a checkpoint has to write

    def read(self, clients: Sequence[int], first: Vectors) -> Vectors:
        """Return the own vectors ``[C, P]`` of some clients; ``first`` for those without a row."""

        def row(c: int, i: int, name: str) -> Tensor:
            if i in self.rows:
                return self.rows[i][name]
            new = getattr(first, name)
            return new if new.dim() == 1 else new[c]

        return Vectors(**{n: torch.stack([row(c, i, n) for c, i in enumerate(clients)]) for n in self.names})

    def peek(self, clients: Sequence[int]) -> Vectors:
        """Return the own vectors ``[C, P]`` of clients that have rows, outside of their rounds."""
        return Vectors(**{n: torch.stack([self.rows[i][n] for i in clients]) for n in self.names})

    def prefetch(self, clients: Sequence[int]) -> None:
        """Hint that these clients are read next."""

    def write(self, clients: Sequence[int], me: Vectors) -> None:
        """Keep the own vectors ``[C, P]`` of some clients."""
        for c, i in enumerate(clients):
            self.rows[i] = {n: getattr(me, n)[c].clone() for n in self.names}
        self.changed.update(clients)

    def take_changes(self) -> set[int]:
        """Return the clients whose rows changed since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    def items(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Iterate over all rows in the order of clients."""
        return iter(sorted(self.rows.items()))

    def load(self, client: int, row: dict[str, Tensor]) -> None:
        """Restore a row from a checkpoint; it does not count as changed."""
        self.rows[client] = {n: row[n] for n in self.names}
