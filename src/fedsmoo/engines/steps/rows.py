"""The vectors that recorded steps read and write, in memory that never moves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsmoo.core import Vectors
from fedsmoo.engines.steps.stepper import Assignment


@dataclass(frozen=True)
class Rows:
    """The vectors of C clients that steps read and write; steps may write every other model into ``spare``."""

    w: Tensor
    spare: Tensor | None
    me: Vectors
    down: Vectors

    @classmethod
    def make(cls, given: Assignment, me: Vectors, clients: int) -> Rows:
        """Allocate rows for so many clients, filled with zeros."""
        size, new = given.down.w.shape[-1], given.down.w.new_zeros
        w = new(clients, size)
        return cls(
            w,
            None,
            me.map(lambda v: new(clients, v.shape[-1])),
            given.down.map(lambda v: new(v.shape) if v.dim() == 1 else new(clients, v.shape[-1])),
        )

    def alternating(self) -> Rows:
        """Return these rows with a spare for the weights."""
        return replace(self, spare=torch.zeros_like(self.w) if self.spare is None else self.spare)

    def of(self, part: slice) -> Rows:
        """Return views of some clients' rows."""
        return Rows(
            self.w[part],
            None if self.spare is None else self.spare[part],
            self.me.map(lambda v: v[part]),
            self.down.map(lambda v: v if v.dim() == 1 else v[part]),
        )

    def fill(self, given: Assignment, w: Tensor, me: Vectors) -> None:
        """Copy a round's inputs into the first rows."""
        clients = len(w)
        copy_rows(self.w[:clients], w)
        for name, v in me.items():
            copy_rows(getattr(self.me, name)[:clients], v)
        for name, v in given.down.items():
            getattr(self.down, name)[: len(v)].copy_(v)


def copy_rows(into: Tensor, rows: Tensor) -> None:
    """Copy rows. One that is the same for all is copied to each: GPUs copy a spread one number by number, slower."""
    if len(rows) > 1 and rows.stride(0) == 0:
        torch._foreach_copy_(list(into.unbind()), [rows[0]] * len(into))
    else:
        into.copy_(rows)
