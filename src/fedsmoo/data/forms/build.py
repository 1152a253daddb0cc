"""From parts to a data set: joined, decoded if they are not yet, divided among the data's own clients."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, FedsmooWarning, brief
from fedsmoo.core.random.streams import stream
from fedsmoo.core.share import count_of_share
from fedsmoo.data.check import PARTS, check, check_own_classes, from_arrays, samples_of, tensor_of
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.forms.decoding import store
from fedsmoo.data.forms.decoding.blocks import Alignment
from fedsmoo.data.forms.decoding.decode import decode, decode_rows, in_files, in_memory, probe_indices, refuse_fickle
from fedsmoo.data.forms.options import Options
from fedsmoo.data.forms.parts import Federation, Known, Part, common_value, select
from fedsmoo.data.targets import CLASSES

EXACT = 2.0**53  # up to which floats have all whole numbers


def build(found: Federation, options: Options, name: str) -> Dataset:
    """Return the data set that parts make up."""
    for part in found.parts:
        if part.count == 0:
            raise FedsmooError(f"{part.what}: it is empty; at least one sample is needed")
    found = split_off_test(found, options.test) if options.test is not None else found
    if any(p.lazy for p in found.parts):
        return load_or_decode(found, options).renamed(name)
    return make_dataset(found, join_in_memory(found), options, name)


def split_off_test(found: Federation, share: float) -> Federation:
    """Move a share of every client's samples, or of all, to a test part: the same ones every time."""
    if found.tests:
        raise FedsmooError(f"{found.train[0].what}: test is {share:g}, but there is a test part: leave one of them out")
    kept, held = [], []
    for number, part in enumerate(found.train):
        groups = list(by_client(holders(part)).values()) if part.clients else [np.arange(part.count)]
        drawn = [stream(0, "test part", number, i).permutation(group) for i, group in enumerate(groups)]
        tested = np.sort(
            np.concatenate([g[: min(max(1, count_of_share(len(g), share, round)), len(g) - 1)] for g in drawn])
        )
        kept.append(select(part, np.setdiff1d(np.arange(part.count), tested)))
        held.append(select(part, tested) if len(tested) else None)
    if found.natural:
        return dataclasses.replace(found, train=tuple(kept), own_test=tuple(held))
    if held[0] is None:
        raise FedsmooError(f"{found.train[0].what}: too few samples to test on some of them")
    return dataclasses.replace(found, train=tuple(kept), test=held[0])


def holders(part: Part) -> np.ndarray:
    """Return who holds each sample of a part; refuse samples that nobody holds, and more or fewer names than samples.

    Names of several types, such as texts and numbers, are texts.
    """
    assert part.clients is not None
    try:
        found = np.asarray(part.clients())
        found = np.array(found.tolist()) if found.dtype == object and not has_gaps(found) else found
    except ValueError:  # lists of different lengths
        found = np.empty((part.count, 0))
    if found.shape != (part.count,):
        raise FedsmooError(
            f"{part.what}: who holds the samples has the shape {list(found.shape)}, but each of the {part.count} "
            "samples needs one client"
        )
    gaps = np.array([v is None or v != v for v in found])
    if gaps.any():
        raise FedsmooError(
            f"{part.what}: {int(gaps.sum())} of {part.count} samples have no client, the first is sample "
            f"{int(gaps.argmax())}: name one, or leave them out"
        )
    return found


def has_gaps(names: np.ndarray) -> bool:
    """Return whether some of the names are missing."""
    return any(v is None or (isinstance(v, float) and v != v) for v in names.flat)


def by_client(names: np.ndarray) -> dict[Any, np.ndarray]:
    """Return the samples of each client, in the order of their names, numbers as numbers: client 1.0 is client 1.

    >>> by_client(np.array(["b", "a", "b"]))
    {'a': array([1]), 'b': array([0, 2])}
    """
    if names.dtype.kind == "f" and bool(((names == np.round(names)) & (np.abs(names) < EXACT)).all()):
        names = names.astype(np.int64)
    found, which = np.unique(names, return_inverse=True)
    order = np.argsort(which, kind="stable")
    return dict(zip(found.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=True))


def join_in_memory(found: Federation) -> dict[str, Any]:
    """Return the arrays of parts that are in memory; a single part is not copied."""
    out: dict[str, Any] = {}
    for name, parts in (("train", found.train), ("test", found.tests)):
        out[f"x_{name}"] = concatenate([samples_of(p.x, f"{p.what}: x") for p in parts], parts)
        out[f"y_{name}"] = concatenate([labels_of(p) for p in parts], parts)
    if out["x_test"] is None:
        return {**out, "x_test": out["x_train"][:0], "y_test": out["y_train"][:0]}
    x, other = out["x_train"], out["x_test"]
    if x.is_floating_point() and other.is_floating_point():  # a file of text has float64 where others have float32
        kind = torch.promote_types(x.dtype, other.dtype)
        out |= {"x_train": x.to(kind), "x_test": other.to(kind)}
    return out


def labels_of(part: Part) -> Any:
    """Return labels as a tensor, or, where they are text, as an array."""
    if isinstance(part.y, Tensor):
        return part.y
    found = np.asarray(part.y)
    text = found.dtype.kind == "U" or (found.dtype == object and all(isinstance(v, str) for v in found.flat))
    return found.astype(str) if text and found.ndim == 1 else found


def concatenate(found: list[Any], parts: Sequence[Part]) -> Any:
    """Join arrays of several parts; refuse those that cannot stand in one."""
    if not found:
        return None
    if isinstance(found[0], np.ndarray) and found[0].dtype.kind == "U":
        return np.concatenate([np.asarray(f).astype(str) for f in found])
    tensors = [tensor_of(f, p.what) for f, p in zip(found, parts, strict=True)]
    for tensor, part in zip(tensors, parts, strict=True):
        if tensor.shape[1:] != tensors[0].shape[1:]:
            shapes = f"{list(tensor.shape[1:])}, those of {parts[0].what} {list(tensors[0].shape[1:])}"
            raise FedsmooError(f"{part.what}: values have the shape {shapes}: make them alike")
        if tensor.is_floating_point() != tensors[0].is_floating_point():
            raise FedsmooError(
                f"{part.what}: {tensor.dtype}, but {parts[0].what} has {tensors[0].dtype}: make them alike"
            )
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def make_dataset(found: Federation, arrays: dict[str, Any], options: Options, name: str) -> Dataset:
    """Return the data set of decoded arrays, checked, with the names of its classes and its own clients."""
    refuse_other_targets(found.parts)
    names = declared = common_value(found.parts, "class_names")
    texts = [isinstance(arrays[n], np.ndarray) and arrays[n].dtype.kind == "U" for n in ("y_train", "y_test")]
    if any(texts):
        known, numbers = np.unique(np.concatenate([arrays["y_train"], arrays["y_test"]]), return_inverse=True)
        names, cut_at = tuple(known.tolist()), len(arrays["y_train"])
        arrays = {**arrays, "y_train": numbers[:cut_at], "y_test": numbers[cut_at:]}
    x_train, y_train, x_test, y_test = (arrays[p] for p in PARTS)
    told: dict[str, Any] = {"target": options.target, "inputs": common_value(found.parts, "inputs")}
    data = from_arrays(x_train, y_train, x_test, y_test, name, **told)
    changes = own_clients(found)
    if names is not None and data.target == CLASSES:
        if data.classes > len(names):
            raise FedsmooError(
                f"data set {name}: labels go up to {data.classes - 1}, but {len(names)} classes have names"
            )
        changes |= {"class_names": names, "classes": len(names)}
    data = dataclasses.replace(data, **changes)
    if declared is None:  # else a rare class may well be in the test part alone
        check_own_classes(data)
    return check(data)


def refuse_other_targets(parts: Sequence[Part]) -> None:
    """Refuse tables of targets whose columns have another order, or other names, than those of the first such table."""
    named = [part for part in parts if part.targets is not None]
    for part in named:
        if part.targets != named[0].targets:
            first, other = (brief(list(p.targets or ())) for p in (named[0], part))
            raise FedsmooError(f"{part.what}: y has the columns {other}, but those of {named[0].what} are {first}")


def own_clients(found: Federation) -> dict[str, Any]:
    """Return the clients that data has by itself, as indices: of training samples, and of test samples of their own."""
    if found.natural:
        tests = [0 if p is None else p.count for p in found.own_test]
        lists = {"natural": consecutive_indices([p.count for p in found.train])}
        return lists | ({"natural_test": consecutive_indices(tests)} if any(tests) else {})
    part = found.train[0]
    if part.clients is None:
        return {}
    mine = by_client(holders(part))
    tested = {} if found.test is None or found.test.clients is None else by_client(holders(found.test))
    out = {"natural": tuple(torch.from_numpy(i) for i in mine.values())}
    if tested and not tested.keys() & mine.keys():
        names = f"{brief(next(iter(tested)))} and {brief(next(iter(mine)))}"
        say = f"{found.tests[0].what}: none of its clients trains (the first are {names})"
        warnings.warn(f"{say}: clients have no test samples of their own", FedsmooWarning, stacklevel=2)
    elif tested:
        none = np.zeros(0, np.int64)
        out["natural_test"] = tuple(torch.from_numpy(tested.get(n, none)) for n in mine)
    return out


def consecutive_indices(counts: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the indices of each client where samples lie client after client."""
    return torch.arange(sum(counts)).split(list(counts))


def load_or_decode(found: Federation, options: Options) -> Dataset:
    """Return the data set of parts that have to be decoded: from the cache, or decoded now and then kept there."""
    for part in found.parts:
        refuse_fickle(part, len(found.parts))
    key = cache_key(found, options)
    try:
        data = store.load_or_build(key, lambda folder: decode_parts(found, options, folder))
        if key is not None and not matches_source(found, data, options):  # files changed, which no key shows
            store.remove_copy(key)
            data = store.load_or_build(key, lambda folder: decode_parts(found, options, folder))
        return data
    except OSError as e:
        why = e.strerror or str(e)
        warnings.warn(f"what was decoded cannot be kept in {store.user_cache()}: {why}", FedsmooWarning, stacklevel=2)
        return decode_parts(found, options, None)


def decode_parts(found: Federation, options: Options, folder: Path | None) -> Dataset:
    """Decode the parts, into files of a folder or into memory."""
    make = in_memory if folder is None else in_files(folder)
    look = Alignment(options.pad, positions=options.target in (None, CLASSES))
    return make_dataset(found, decode(found.train, found.tests, look, make), options, "custom")


def cache_key(found: Federation, options: Options) -> str | None:
    """Return a key that identifies the parts without decoding them; ``None`` if one of them has none."""
    known: Known = {}
    keys = [p.key(known) for p in found.parts]
    if None in keys:
        return None
    shape = [[p.count for p in found.train], [p and p.count for p in found.own_test], found.natural]
    return json.dumps([store.VERSION, keys, shape, {n: str(v) for n, v in options.given().items()}])


def matches_source(found: Federation, data: Dataset, options: Options) -> bool:
    """Return whether some samples, decoded now, are those of the copy: files that a user's code reads may change."""
    length = data.x_train.shape[-1] if data.x_train.dtype == torch.int64 else None
    colour = data.is_image and data.x_train.shape[-1] == 3
    look = Alignment(options.pad, length, colour, options.target in (None, CLASSES))
    for parts, x, y in ((found.train, data.x_train, data.y_train), (found.tests, data.x_test, data.y_test)):
        at = 0
        for part in parts:
            for i in probe_indices(part.count, len(found.parts)) if part.fickle else ():
                now = [torch.from_numpy(v)[0] for v in decode_rows(part, i, i + 1, look)]
                before = (x[at + i], y[at + i])
                if any(not torch.equal(a.reshape(b.shape).to(b.dtype), b) for a, b in zip(now, before, strict=True)):
                    return False
            at += part.count
    return True
