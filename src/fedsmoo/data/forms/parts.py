"""Samples in whatever form they come, as parts that are in memory or can be read some rows at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError

Rows = Callable[[int, int], tuple[list[Any], list[Any]]]
Known = dict[int, str | None]  # keys of objects, by id: many parts may be of one data set, which is looked at once


@dataclass(frozen=True)
class Part:
    """Some samples with their labels.

    Either ``x`` and ``y`` hold them, as arrays, or they are still to be decoded: ``rows(lo, hi)`` then returns the
    columns of samples and those of labels, each an array ``[n, ...]`` or a list of n values. ``key`` says what such
    samples are, without decoding them: the same key is the same content; ``None`` where that cannot be known.
    """

    count: int
    what: str  # for errors, such as "data: train part"
    x: Any = None
    y: Any = None
    rows: Rows | None = None
    key: Callable[[Known], str | None] = lambda known: None
    inputs: tuple[str, ...] | None = None  # names of several inputs
    features: bool = False  # the columns of samples hold one number each
    columns: tuple[Any, ...] | None = None  # that samples were made of, in this order; the same ones in every part
    targets: tuple[Any, ...] | None = None  # columns of several targets, in their order, where a table has names
    class_names: tuple[str, ...] | None = None
    clients: Callable[[], np.ndarray] | None = None  # who holds each sample
    fickle: bool = False  # code of the user's makes the items: two reads of one may differ

    @property
    def lazy(self) -> bool:
        return self.rows is not None


@dataclass(frozen=True)
class Federation:
    """Data taken apart: a training part per client, the clients' own test parts where they have some, one for all."""

    train: tuple[Part, ...]
    own_test: tuple[Part | None, ...] = ()
    test: Part | None = None
    natural: bool = False  # each training part is a client

    @property
    def tests(self) -> tuple[Part, ...]:
        """All test parts, the clients' own ones first."""
        return (*(p for p in self.own_test if p is not None), *((self.test,) if self.test is not None else ()))

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.train, *self.tests)


def rows_of(part: Part, lo: int, hi: int) -> tuple[list[Any], list[Any]]:
    """Return rows of a part, wherever they are."""
    return part.rows(lo, hi) if part.rows is not None else ([part.x[lo:hi]], [part.y[lo:hi]])


def select(part: Part, index: np.ndarray) -> Part:
    """Return the samples of a part with these indices, as a part."""
    names = part.clients
    clients = None if names is None else lambda: names()[index]
    if not part.lazy:
        x, y = (v[torch.from_numpy(index)] if isinstance(v, Tensor) else np.asarray(v)[index] for v in (part.x, part.y))
        return replace(part, count=len(index), x=x, y=y, clients=clients)

    def rows(lo: int, hi: int) -> tuple[list[Any], list[Any]]:
        found = [rows_of(part, int(i), int(i) + 1) for i in index[lo:hi]]
        xs, ys = ([[v[0] for v in column] for column in zip(*some, strict=True)] for some in zip(*found, strict=True))
        return xs, ys

    def key(known: Known) -> str | None:
        return key_of_selection(part.key(known), index)

    return replace(part, count=len(index), rows=rows, key=key, clients=clients)


def key_of_selection(key: str | None, index: np.ndarray) -> str | None:
    """Return the key of a selection, from the key of all and the indices selected."""
    return None if key is None else f"{key} at {hashlib.sha256(index.astype(np.int64).tobytes()).hexdigest()}"


def common_value(parts: Sequence[Part], name: str) -> Any:
    """Return the value of a field that must be the same in all parts; refuse parts that differ in it."""
    values = [getattr(p, name) for p in parts]
    for part, value in zip(parts, values, strict=True):
        if value != values[0]:
            said = {"inputs": "inputs", "class_names": "names of classes"}[name]
            raise FedsmooError(f"{part.what} has other {said} than {parts[0].what}: {value} and {values[0]}")
    return values[0]
