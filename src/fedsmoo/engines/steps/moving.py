"""Numbers of a method that move from round to round, in memory that recorded work reads: it would build them in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from torch import Tensor

from fedsmoo.core import Algorithm

A = TypeVar("A", bound=Algorithm)


def moving_numbers(now: Algorithm, method: Algorithm) -> frozenset[str]:
    """Return which numbers a method has in this round only: those that ``method.at(number)`` changed.

    Those of a method inside have its field's name before theirs: ``inner.r``.
    """
    found: set[str] = set()
    for name, value in now.options().items():
        before = getattr(method, name)
        if isinstance(value, Algorithm):
            found |= {f"{name}.{n}" for n in moving_numbers(value, before)}
        elif value is not before:
            found.add(name)
    return frozenset(found)


def changed(method: A, names: Collection[str], change: Callable[[Any], Any]) -> A:
    """Return a method with some of its numbers changed, also of a method inside."""
    new = {n: change(getattr(method, n)) for n in names if "." not in n}
    for field in {n.partition(".")[0] for n in names if "." in n}:
        inner = [n.partition(".")[2] for n in names if n.startswith(f"{field}.")]
        new[field] = changed(getattr(method, field), inner, change)
    return dataclasses.replace(method, **new) if new else method


def read(method: Algorithm, name: str) -> Any:
    """Return a number of a method, or of one inside it, by its name."""
    for part in name.split("."):
        method = getattr(method, part)
    return method


def number_buffers(method: A, names: Collection[str], clients: int, like: Tensor) -> A:
    """Return the method with moving numbers in buffers of their own, ``[C, 1]``; :func:`fill_numbers` writes them."""
    return changed(method, names, lambda _: like.new_ones(clients, 1))


def fill_numbers(into: Algorithm, source: Algorithm, names: Collection[str], part: slice) -> None:
    """Copy a round's numbers, those of a ``part`` of its clients, into buffers."""
    for name in names:
        buffer, value = read(into, name), read(source, name)
        if isinstance(value, Tensor):  # of several runs
            rows = value[part]
            buffer[: len(rows)].copy_(rows)
        else:
            buffer.fill_(value)
