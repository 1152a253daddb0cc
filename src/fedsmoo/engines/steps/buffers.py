"""A round's numbers in memory that never moves: recorded steps read them there, and every round writes them anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from torch import Tensor

from fedsmoo.core import Round


def round_buffers(rnd: Round, clients: int, like: Tensor) -> Round:
    """Return a round of buffers for so many clients: ``[C, ...]`` for what has a row for each, else single numbers."""

    def room(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() > 1:
            return value.new_ones(clients, *value.shape[1:])  # rows of clients that never become active divide by one
        return like.new_ones(()) if isinstance(value, int | float | Tensor) else value

    return Round(**{f.name: room(getattr(rnd, f.name)) for f in dataclasses.fields(rnd)})


def fill_round(into: Round, rnd: Round, part: slice, only: Collection[str] | None = None) -> None:
    """Copy a round's numbers, those of a ``part`` of its clients, into buffers: all of them, or some by name."""
    for name, buffer in into.tensors().items():
        value = getattr(rnd, name)
        if value is None or (only is not None and name not in only):
            continue
        if isinstance(value, Tensor) and value.dim() > 1:
            rows = value[part]
            buffer[: len(rows)].copy_(rows)
        else:
            buffer.fill_(value)
