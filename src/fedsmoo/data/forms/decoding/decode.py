"""Decode samples once, some rows at a time, into arrays in files that are mapped into memory."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError, FedsmooWarning
from fedsmoo.data.forms.decoding.blocks import (
    Alignment,
    MixedColours,
    UnequalLengths,
    as_array,
    lengths,
    longest,
    refuse_other_shape,
    stack_labels,
    stack_samples,
)
from fedsmoo.data.forms.parts import Part, rows_of

BLOCK = 256  # samples decoded at a time
LOOKED_AT = 32  # samples that are read twice: what differs between two reads is random
MANY = 2000  # samples from which decoding is announced where there is no terminal

Pair = tuple[np.ndarray, np.ndarray]
Make = Callable[[str, tuple[int, ...], np.dtype], np.ndarray]


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array to be filled."""
    return np.empty(shape, dtype)


def in_files(folder: Path) -> Make:
    """Return what makes an array to be filled, in a file ``NAME.npy`` of a folder, mapped into memory."""

    def make(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        path = folder / f"{name}.npy"
        if 0 in shape:
            np.save(path, np.empty(shape, dtype))
            return np.empty(shape, dtype)
        found = np.lib.format.open_memmap(path, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash when a page is written
            with path.open("rb+") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return found

    return make


def decode(train: Sequence[Part], test: Sequence[Part], look: Alignment, make: Make) -> dict[str, np.ndarray]:
    """Return ``x_train``, ``y_train``, ``x_test`` and ``y_test``, filled from parts of one kind; no test part: empty.

    Sequences of unequal length are measured and padded to the longest, and grey images among colour images become
    colour images: then all is read a second time.
    """
    parts = [*train, *test]
    with progress_bar(sum(p.count for p in parts), parts[0].what) as step:
        while True:
            try:
                first = decode_rows(parts[0], 0, min(BLOCK, parts[0].count), look)
                out: dict[str, np.ndarray] = {}
                for name, some in (("train", train), ("test", test)):
                    out |= decode_part(name, some, first, look, make, step)
                return out
            except UnequalLengths:
                if look.length is not None:
                    raise FedsmooError(
                        f"{parts[0].what}: some samples are tokens, others not: make them alike"
                    ) from None
                look = replace(look, length=longest_sequence(parts, look.pad))
            except MixedColours:
                if look.colour:  # arrays, whose colours are as they are
                    raise FedsmooError(
                        f"{parts[0].what}: some images are grey, others coloured: give all of them 3 channels"
                    ) from None
                look = replace(look, colour=True)


def longest_sequence(parts: Sequence[Part], pad: int) -> int:
    """Return the length of the longest sequence, and say that others are filled up."""
    found = max(longest(rows_of(p, lo, min(lo + BLOCK, p.count))[0]) for p in parts for lo in range(0, p.count, BLOCK))
    warnings.warn(
        f"{parts[0].what}: sequences differ in length and are padded to {found}, the longest, with the pad id {pad}; "
        "say pad=ID if the tokenizer has another",
        FedsmooWarning,
        stacklevel=2,
    )
    return found


def decode_rows(part: Part, lo: int, hi: int, look: Alignment) -> Pair:
    """Return rows of a part as arrays."""
    xs, ys = rows_of(part, lo, hi)
    where = f"{part.what}, samples {lo} to {hi - 1}"
    x = stack_samples(xs, part.inputs, part.features, look, where)
    y = stack_labels(ys, look, f"{where}: labels", None if look.length is None else lengths(xs[0]))
    if not len(x) == len(y) == hi - lo:
        raise FedsmooError(f"{where}: {len(x)} samples and {len(y)} labels came of {hi - lo} items")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        bad = lo + int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])
        raise FedsmooError(f"{part.what}: sample {bad} holds NaN or infinite values; remove or repair it")
    return x, y


def decode_part(
    name: str, parts: Sequence[Part], like: Pair, look: Alignment, make: Make, step: Callable[[int], None]
) -> dict[str, np.ndarray]:
    """Return the arrays of a part of a data set, decoded block by block; each sample must be like the first one."""
    total = sum(p.count for p in parts)
    x, y = (make(f"{n}_{name}", (total, *a.shape[1:]), a.dtype) for n, a in zip("xy", like, strict=True))
    at = 0
    for part in parts:
        for lo in range(0, part.count, BLOCK):
            hi = min(lo + BLOCK, part.count)
            found = decode_rows(part, lo, hi, look)
            for target, new, first in zip((x, y), found, like, strict=True):
                if new.shape[1:] != first.shape[1:]:
                    refuse_other_shape(new.shape[1:], first[0], part.what)
                if new.dtype != first.dtype:
                    raise FedsmooError(
                        f"{part.what}: values of {new.dtype} after values of {first.dtype}: make them alike"
                    )
                target[at : at + hi - lo] = new
            at += hi - lo
            step(hi - lo)
    return {f"x_{name}": x, f"y_{name}": y}


def refuse_fickle(part: Part, parts: int) -> None:
    """Refuse items that differ between two reads: a data set is decoded once; augmentation is drawn by the steps."""
    if not part.fickle:
        return
    for i in probe_indices(part.count, parts):
        once, again = (rows_of(part, i, i + 1) for _ in range(2))
        pairs = zip((*once[0], *once[1]), (*again[0], *again[1]), strict=True)
        if not all(same_value(a, b, f"{part.what}: item {i}") for a, b in pairs):
            raise FedsmooError(
                f"{part.what}: item {i} is another one each time it is read: leave random transforms out of the data "
                "set (it is decoded once) and set augment=True for flips and crops"
            )


def probe_indices(count: int, parts: int) -> list[int]:
    """Return the indices of the samples that are read twice: the first, the last, and some between them."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, max(2, 2 * LOOKED_AT // parts)))})


def same_value(a: list[Any], b: list[Any], what: str) -> bool:
    """Return whether two lists with one value each hold the same."""
    one, two = (as_array(v[0], False, what) if not isinstance(v[0], str) else np.array(v[0]) for v in (a, b))
    return bool(np.array_equal(one, two, equal_nan=one.dtype.kind == two.dtype.kind == "f"))


@contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Show how far decoding is on a terminal; elsewhere say in a line that it began, if it takes a while."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    text = f"decoding {what.partition(':')[0]}"
    if not console.is_terminal and total >= MANY:
        print(f"{text}: {total} samples, once", file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=total)
        yield lambda count: progress.advance(task, count)
