"""From values of any kind (tensors, lists, PIL images, tokens) to arrays with one row per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, brief
from fedsmoo.data.check import samples_of
from fedsmoo.data.files.pixels import TooDeep, pixels_of
from fedsmoo.data.forms.columns import TOKENS
from fedsmoo.data.targets import NO_LABEL


class UnequalLengths(Exception):
    """Sequences of tokens differ in length: they have to be measured, and padded."""


class MixedColours(Exception):
    """Grey images are followed by colour images: all have to be read as colour images."""


@dataclass(frozen=True)
class Alignment:
    """How samples are given one shape: the length of sequences, what pads them, whether grey images become colour.

    Whole numbers as labels are filled up with them only where they are classes, one for each position.
    """

    pad: int = 0
    length: int | None = None
    colour: bool = False
    positions: bool = True


def as_array(value: Any, colour: bool, what: str) -> np.ndarray:
    """Return one value as an array; a PIL image as uint8 ``[H, W, 1 or 3]``."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if type(value).__module__.split(".")[0] == "PIL":
        try:
            return pixels_of(value, "RGB" if colour else None)
        except OSError as e:  # as of a file that was cut
            raise FedsmooError(f"{what}: an image cannot be read ({e})") from None
        except TooDeep as e:
            raise FedsmooError(f"{what}: an image {e}") from None
    try:
        found = np.asarray(value)
    except ValueError:
        raise FedsmooError(f"{what}: a value is a list of lists of different lengths: {brief(value)}") from None
    if found.dtype.kind not in "biuf":
        kind = "text" if found.dtype.kind in "US" else f"a {type(value).__name__}"
        raise FedsmooError(f"{what}: a value is {kind}, {brief(value)}, but must be numbers or an image")
    return found


def stack_column(values: Any, look: Alignment, fill: int, what: str) -> np.ndarray:
    """Return a column as one array ``[n, ...]``; sequences of unequal length are filled up to the longest of all."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and look.length is None:
        return values
    if isinstance(values, Tensor) and look.length is None:
        return as_array(values, False, what)
    each = [as_array(v, look.colour, what) for v in values]
    if look.length is not None and each[0].ndim == 1 and each[0].dtype.kind in "iu":
        out = np.full((len(each), look.length), fill, np.int64)
        for row, tokens in zip(out, each, strict=True):
            if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
                raise FedsmooError(f"{what}: {brief(tokens)} is among lists of whole numbers: make them alike")
            row[: len(tokens)] = tokens
        return out
    return np.stack(same_shapes(each, what))


def same_shapes(each: list[np.ndarray], what: str) -> list[np.ndarray]:
    """Return values of one shape; refuse others, or say what has to be done to make them so."""
    odd = next((v for v in each if v.shape != each[0].shape), None)
    if odd is not None:
        refuse_other_shape(odd.shape, each[0], what)
    return each


def refuse_other_shape(shape: Sequence[int], first: np.ndarray, what: str) -> None:
    """Raise ``UnequalLengths`` or ``MixedColours`` where all can be given one shape, else a ``FedsmooError``."""
    if first.ndim == len(shape) == 1 and first.dtype.kind in "iu":
        raise UnequalLengths
    image = first.dtype == np.uint8 and first.ndim == len(shape) == 3
    if image and first.shape[:2] == tuple(shape[:2]) and {first.shape[2], shape[2]} == {1, 3}:
        raise MixedColours
    do = "resize them" if image else "make them alike"
    raise FedsmooError(f"{what}: samples have different shapes, {list(first.shape)} and {list(shape)}: {do} first")


def stack_samples(
    columns: Sequence[Any], inputs: tuple[str, ...] | None, features: bool, look: Alignment, what: str
) -> np.ndarray:
    """Return a block of samples ``[n, ...]`` as a data set keeps them.

    Columns of one number each are ``features``, ``[n, F]``; several inputs of one shape are stacked, ``[n, F, ...]``.
    """
    names = inputs or ("",) * len(columns)
    fills = [0 if n in TOKENS[1:] else look.pad for n in names]
    if look.length is not None and inputs is not None:
        odd = next((n for n, c in zip(inputs, columns, strict=True) if lengths(c) != lengths(columns[0])), None)
        if odd is not None:
            raise FedsmooError(
                f"{what}: inputs {inputs[0]!r} and {odd!r} of a sample differ in length: make them alike"
            )
    found = [stack_column(c, look, fill, what) for c, fill in zip(columns, fills, strict=True)]
    if features:
        kind = np.result_type(*(f.dtype for f in found))
        block = np.stack(found, 1).astype(kind if kind.kind == "f" else np.float64)
    elif len(found) == 1:
        block = found[0]
    else:
        odd = next((n for n, f in zip(names, found, strict=True) if f.shape != found[0].shape), None)
        if odd is not None:
            raise FedsmooError(f"{what}: inputs {names[0]!r} and {odd!r} have different shapes: leave one out, x=[...]")
        block = np.stack(found, 1)
    return samples_of(np.ascontiguousarray(block), what).numpy()


def stack_labels(columns: Sequence[Any], look: Alignment, what: str, tokens: list[int] | None = None) -> np.ndarray:
    """Return a block of labels ``[n]`` or ``[n, ...]``: classes as int64, numbers as they are.

    ``tokens`` are the lengths of samples that are filled up: their labels are, too, where each position has one.
    """
    for column in columns:
        if isinstance(column[0], str):
            raise FedsmooError(
                f"{what} are text, {brief(str(column[0]))}: number the classes in the data set itself, as "
                "HuggingFace's data.class_encode_column(NAME) does"
            )
        if tokens is not None and look.positions and any(lengths(column)):
            refuse_misaligned(lengths(column), tokens, what)
    look = look if look.positions else replace(look, length=None)
    found = [stack_column(c, look, NO_LABEL, what) for c in columns]
    if len(found) > 1 and any(f.ndim > 1 for f in found):
        raise FedsmooError(f"{what}: y names several columns, so each must hold one number per sample")
    block = found[0] if len(found) == 1 else np.stack(found, 1)
    return np.ascontiguousarray(block if block.dtype.kind == "f" else block.astype(np.int64))


def lengths(column: Any) -> list[int]:
    """Return how long the sequences in a column are; of values that are none, 0.

    >>> lengths([[5, 6, 7], [8], 9])
    [3, 1, 0]
    """
    return [len(v) if np.ndim(v) == 1 else 0 for v in column]


def refuse_misaligned(labels: list[int], tokens: list[int], what: str) -> None:
    """Refuse lists of labels that are not one for each token of their sample: filled up, they would be of others."""
    odd = next((k for k, both in enumerate(zip(labels, tokens, strict=True)) if both[0] != both[1]), None)
    if odd is not None:
        raise FedsmooError(
            f"{what}: a sample of {tokens[odd]} tokens has {labels[odd]} labels: give each token one ({NO_LABEL} where "
            'there is none), or, if they are several labels of a sample, say target="labels"'
        )


def longest(columns: Sequence[Any]) -> int:
    """Return the length of the longest sequence in columns of samples."""
    return max((len(v) for c in columns for v in c if np.ndim(v) == 1), default=0)
