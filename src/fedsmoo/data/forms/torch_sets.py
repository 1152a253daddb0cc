"""PyTorch's data sets: ``TensorDataset`` without copying, any other map-style one by decoding its items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from fedsmoo.core.errors import FedsmooError, brief
from fedsmoo.core.user_code import call
from fedsmoo.data.forms.columns import ARRAY, IMAGE, NUMBER, OTHER, TEXT, Chosen, choose
from fedsmoo.data.forms.decoding.keys import state_key
from fedsmoo.data.forms.options import Options
from fedsmoo.data.forms.parts import Known, Part, key_of_selection

REMEDY = "turn it into numbers in the data set's own __getitem__"


def is_torch(value: Any) -> bool:
    """Return whether a value is one of PyTorch's data sets or loaders, or has a length and items as they have."""
    if isinstance(value, TorchDataset | DataLoader):
        return True
    plain = isinstance(value, Mapping | list | tuple | str | bytes | range | np.ndarray | Tensor | type)
    return not plain and hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__")


def torch_part(value: Any, options: Options, what: str) -> Part:
    """Return a map-style data set as a part."""
    if isinstance(value, DataLoader):
        raise FedsmooError(f"{what}: a DataLoader makes batches of its own: give its data set, loader.dataset")
    if isinstance(value, IterableDataset):
        raise FedsmooError(
            f"{what}: an iterable data set has no numbered items: give one with __len__ and __getitem__, or collect "
            "its items into a TensorDataset first"
        )
    refuse_odd_indices(value, what)
    tensors = tensors_in(value)
    if tensors is None:
        return item_part(value, options, what)
    if len(tensors) != 2:
        raise FedsmooError(f"{what}: a TensorDataset of {len(tensors)} tensors, but must be of two, (x, y)")
    return Part(len(tensors[0]), what, tensors[0], tensors[1])


def item_part(value: Any, options: Options, what: str) -> Part:
    """Return a data set as a part whose items are still to be decoded."""
    count = call(len, f"{what}: its length", value) if hasattr(type(value), "__len__") else None
    if count is None:
        raise FedsmooError(f"{what}: a {type(value).__name__} without __len__: say how many items there are")
    if count == 0:
        return Part(0, what)
    chosen = chosen_in(read_item(value, 0, what), options, what)

    def rows(lo: int, hi: int) -> tuple[list[Any], list[Any]]:
        return item_columns([read_item(value, i, what) for i in range(lo, hi)], chosen, lo, what)

    part = Part(count, what, rows=rows, key=partial(cache_key, value), fickle=True)
    if chosen is None:
        return part

    def clients() -> np.ndarray:
        return np.array([plain(read_item(value, i, what)[chosen.client]) for i in range(count)])

    return replace(
        part,
        inputs=chosen.inputs,
        features=chosen.features,
        columns=chosen.named,
        clients=None if chosen.client is None else clients,
    )


def refuse_odd_indices(value: Any, what: str) -> None:
    """Refuse a ``Subset`` by a mask, which PyTorch reads as items 0 and 1, or by numbers that are no items."""
    if type(value) is ConcatDataset:
        for inner in value.datasets:
            refuse_odd_indices(inner, what)
    if type(value) is not Subset:
        return
    refuse_odd_indices(value.dataset, what)
    found = np.asarray(value.indices)
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
        hint = "of a mask use np.flatnonzero(mask)" if found.dtype.kind == "b" else "give whole numbers"
        raise FedsmooError(f"{what}: the indices of a Subset are {brief(value.indices)}, but must number items: {hint}")
    count = call(len, f"{what}: its length", value.dataset)
    odd = found[(found < -count) | (found >= count)].tolist()
    if odd:
        raise FedsmooError(f"{what}: a Subset has the item {odd[0]}, but its data set has items 0 to {count - 1}")


def tensors_in(value: Any) -> list[Tensor] | None:
    """Return the tensors of a ``TensorDataset``, or of parts and chains of such; ``None`` for other data sets."""
    if type(value) is TensorDataset:
        return list(value.tensors)
    if type(value) is Subset:
        inner = tensors_in(value.dataset)
        return None if inner is None else [t[torch.as_tensor(np.asarray(value.indices, np.int64))] for t in inner]
    if type(value) is ConcatDataset:
        inside = [tensors_in(d) for d in value.datasets]
        lists = [i for i in inside if i is not None]
        shapes = {tuple((t.dtype, t.shape[1:]) for t in tensors) for tensors in lists}
        if len(lists) == len(inside) and len(shapes) == 1:
            return [torch.cat(some) for some in zip(*lists, strict=True)]
    return None


def cache_key(value: Any, known: Known) -> str | None:
    """Return what a data set is: of a part or a chain what it is of, and which items."""
    if type(value) is Subset:
        return key_of_selection(cache_key(value.dataset, known), np.asarray(value.indices))
    if type(value) is ConcatDataset:
        keys = [cache_key(d, known) for d in value.datasets]
        return None if None in keys else " then ".join(map(str, keys))
    if id(value) not in known:
        known[id(value)] = state_key(value)
    return known[id(value)]


def read_item(value: Any, index: int, what: str) -> Any:
    """Return an item as the user's code makes it; an error in it is one line with its file and line."""
    return call(value.__getitem__, f"{what}: item {index}", index)


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value


def kind_of(value: Any) -> str:
    """Return what a field of an item holds."""
    if isinstance(value, str):
        return TEXT
    if type(value).__module__.partition(".")[0] == "PIL":
        return IMAGE
    if isinstance(value, Tensor | np.ndarray | list | tuple):
        return NUMBER if np.ndim(value) == 0 else ARRAY
    return NUMBER if isinstance(value, int | float | np.generic) else OTHER


def chosen_in(first: Any, options: Options, what: str) -> Chosen | None:
    """Return which fields of items are what, by the first one; ``None`` where items are pairs ``(x, y)``."""
    if isinstance(first, Mapping):
        return choose({n: kind_of(v) for n, v in first.items()}, options, what, REMEDY.format)
    named = [n for n in ("x", "y", "client") if getattr(options, n) is not None]
    if named:
        raise FedsmooError(f"{what}: {named[0]} names a field, but its items have no names: leave it out")
    refuse_no_pair(first, what, 0)
    return None


def refuse_no_pair(found: Any, what: str, index: int) -> None:
    """Refuse an item that is no pair of a sample and its label."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        size = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        kind = f"{type(found).__name__}{size}"
        raise FedsmooError(
            f"{what}: item {index} is a {kind}, {brief(found)}, but must be a pair (x, y), or a dict with names"
        )


def item_columns(items: list[Any], chosen: Chosen | None, lo: int, what: str) -> tuple[list[Any], list[Any]]:
    """Return items as columns of samples and of labels."""
    if chosen is None:
        for i, one in enumerate(items):
            refuse_no_pair(one, what, lo + i)
        return [[one[0] for one in items]], [[one[1] for one in items]]
    for i, one in enumerate(items):
        missing = [n for n in (*chosen.x, *chosen.y) if not isinstance(one, Mapping) or n not in one]
        if missing:
            raise FedsmooError(f"{what}: item {lo + i} has no {missing[0]!r}, which item 0 has")
    return [[one[n] for one in items] for n in chosen.x], [[one[n] for one in items] for n in chosen.y]
