"""Stack the methods and step rules of several runs into one, whose numbers differ from client to client."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedsmoo.core import Algorithm, FedsmooError

T = TypeVar("T")


def stack(things: Sequence[T], counts: Sequence[int], like: Tensor) -> T:
    """Return one method, or step rule, for all runs: equal fields stay as they are, other numbers become ``[C, 1]``.

    Raises:
        FedsmooError: if they differ in more than plain numbers.
    """
    first = things[0]
    if any(type(t) is not type(first) for t in things):
        raise FedsmooError("runs of different methods cannot share a batch")
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(first):  # type: ignore[arg-type]
        values = [getattr(t, field.name) for t in things]
        if isinstance(values[0], Algorithm):  # a wrapped method
            changes[field.name] = stack(values, counts, like)
        elif any(v != values[0] for v in values):
            plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            if not plain or field.metadata.get("counts"):
                raise FedsmooError(f"runs that differ in {field.name} cannot share a batch: it is not a plain number")
            changes[field.name] = per_client(values, counts, like)
    return dataclasses.replace(first, **changes)  # type: ignore[type-var]


def per_client(values: Sequence[float], counts: Sequence[int], like: Tensor) -> Tensor:
    """Return a number per run as a number per client, ``[C, 1]``."""
    repeated = [v for v, n in zip(values, counts, strict=True) for _ in range(n)]
    return torch.tensor(repeated, dtype=like.dtype, device=like.device)[:, None]


def of_clients(thing: T, part: slice) -> T:
    """Return a stacked method or rule for some of its clients, with copies of their numbers."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(thing):  # type: ignore[arg-type]
        value = getattr(thing, field.name)
        if isinstance(value, Algorithm):
            changes[field.name] = of_clients(value, part)
        elif isinstance(value, Tensor):
            changes[field.name] = value[part].clone()
    return dataclasses.replace(thing, **changes) if changes else thing  # type: ignore[type-var]


def stackable(things: Sequence[Any]) -> bool:
    """Return whether methods (or rules) differ in plain numbers only."""
    try:
        stack(things, [1] * len(things), torch.zeros(1))
    except FedsmooError:
        return False
    return True
