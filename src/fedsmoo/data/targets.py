"""What a model is trained to say: one class, numbers, or several labels; told by type and shape, never guessed.

``classes``: whole numbers ``[N]``, or ``[N, T]``: one for every position of a sequence, -100 where there is none.
``numbers``: floats ``[N]`` or ``[N, D]``, the targets of a regression.
``labels``: 0 or 1 for each of K labels, floats ``[N, K]``, of which a sample may have any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, unknown

if TYPE_CHECKING:
    from fedsmoo.data.dataset import Dataset

CLASSES, NUMBERS, LABELS = TARGETS = ("classes", "numbers", "labels")
NO_LABEL = -100  # of a position that has none, as PyTorch's losses know it
MANY = 100_000  # classes that few samples may have: the words of a language, not somebody's telephone numbers
BINS = 10  # equal shares of the samples, by the size of their first number, which stand for classes in a partition


def classes_said(out: Tensor) -> Tensor:
    """Return the class that is said at each position; none (-101) where an output is NaN, which would be the largest.

    >>> classes_said(torch.tensor([[0.1, 0.9], [0.3, torch.nan], [torch.nan, torch.nan]])).tolist()
    [1, -101, -101]
    """
    return out.argmax(-1).masked_fill(out.isnan().any(-1), NO_LABEL - 1)


def read_targets(train: Tensor, test: Tensor, name: str, target: str | None = None) -> tuple[Tensor, Tensor, str]:
    """Return the targets of both parts in the type they are kept in, and their kind.

    Args:
        train: of the training part, which says what they are unless the caller does; ``[N]`` or ``[N, ...]``.
        test: of the test part, of the same kind.
        name: of the data set, for messages.
        target: their kind, one of ``TARGETS``; ``None``: by their type.
    """
    if target is not None and target not in TARGETS:
        raise unknown("target", str(target), TARGETS)
    kind = target or kind_of_targets(train, f"{name}: y_train")
    if target is None and kind == CLASSES and kind_of_targets(test, f"{name}: y_test") != kind:
        raise FedsmooError(f"{name}: y_train holds classes, but y_test numbers with fractions: both must be alike")
    y_train, y_test = (to_stored_type(y, kind, f"{name}: y_{part}") for y, part in ((train, "train"), (test, "test")))
    return y_train, y_test.to(y_train.dtype), kind


def kind_of_targets(y: Tensor, what: str) -> str:
    """Return what targets are by their type: whole numbers are classes, fractions are numbers.

    Floats that are all whole may be classes that a file keeps as floats, counts of something, or labels: refused.
    """
    if not y.is_floating_point() or not y.numel():
        return CLASSES
    if bool((y != y.round()).any()):  # NaN among them, which the check of the data names
        return NUMBERS
    hint = 'convert classes with y.astype(int) or y.long(); for a regression say target="numbers"'
    if y.dim() == 2 and y.shape[1] > 1 and bool(((y == 0) | (y == 1)).all()):
        hint = 'of one-hot classes use y.argmax(1); for several labels say target="labels"'
    kind = str(y.dtype).removeprefix("torch.")
    raise FedsmooError(f"{what}: labels must be whole numbers, but are {kind}: {hint}")


def to_stored_type(y: Tensor, kind: str, what: str) -> Tensor:
    """Return targets of a kind in the type that a data set keeps."""
    if y.dim() == 2 and y.shape[1] == 1 and kind != LABELS:  # the column vectors of other simulators
        y = y[:, 0]
    if kind != CLASSES:
        return y if y.dtype == torch.float64 and kind == NUMBERS else y.float()
    if y.is_floating_point() and y.numel() and not bool((y == y.round()).all()):
        raise FedsmooError(f"{what}: classes must be whole numbers, but some have fractions")
    if y.dtype == torch.uint64 and y.numel() and int(y.view(torch.int64).min()) < 0:
        raise FedsmooError(f"{what}: labels go beyond {2**63 - 1}: number the classes from 0")
    return y.long()


def count_outputs(ys: Sequence[Tensor], target: str, name: str) -> int:
    """Return the number of classes or labels, at least 1; 0 for numbers."""
    if target == NUMBERS:
        return 0
    return max(1, ys[0].shape[-1] if target == LABELS and ys[0].dim() > 1 else count_classes(ys, name))


def count_classes(labels: Sequence[Tensor], name: str) -> int:
    """Return the number of classes, from 0 to the largest label; refuse labels too large to be classes."""
    most = max((int(y.max()) for y in labels if y.numel()), default=-1)
    samples = sum(y.numel() for y in labels)
    if most >= max(MANY, 10 * samples):
        raise FedsmooError(
            f"data set {name}: labels go up to {most}, but there are only {samples} of them: number the classes from "
            "0, as np.unique(y, return_inverse=True)[1] does"
        )
    return most + 1


def check_targets(dataset: Dataset, where: str, x: Tensor, y: Tensor) -> None:
    """Refuse targets of a part whose type, shape or values are not what the data set says they are."""
    if dataset.target == CLASSES:
        _check_classes(dataset, where, x, y)
        return
    if not y.is_floating_point():
        raise FedsmooError(f"{where}: the target is {dataset.target!r}, but y is {y.dtype}: use y.float()")
    if dataset.target == LABELS:
        if y.dim() != 2:
            raise FedsmooError(f"{where}: several labels are a matrix of 0 and 1, [{len(y)}, K], not {list(y.shape)}")
        if not bool(((y == 0) | (y == 1)).all()):
            raise FedsmooError(f"{where}: several labels are 0 or 1 each, but y holds other values")
        if y.shape[1] != dataset.classes:
            raise FedsmooError(f"{where}: {y.shape[1]} labels a sample, but the data set has {dataset.classes}")
        return
    good = torch.isfinite(y.reshape(len(y), -1)).all(1)
    if not bool(good.all()):
        raise FedsmooError(
            f"{where}: {int((~good).sum())} of {len(y)} targets are NaN or infinite, the first is that of sample "
            f"{int((~good).nonzero()[0])}; remove or repair them"
        )


def _check_classes(dataset: Dataset, where: str, x: Tensor, y: Tensor) -> None:
    if y.dtype != torch.int64:
        raise FedsmooError(
            f"{where}: labels are {y.dtype}, but must be whole numbers (int64): use y.long(); for a regression say "
            'target="numbers"'
        )
    if y.dim() != 1 and not is_sequence(dataset, x, y):
        hint = (
            'of one-hot labels: y.argmax(1); several labels: target="labels"; a class for each pixel: '
            'target="numbers", and a loss and a metric of your own'
        )
        raise FedsmooError(
            f"{where}: labels have shape {list(y.shape)}, but each sample needs one class, [{len(x)}] ({hint})"
        )
    there = y if y.dim() == 1 else y[y != NO_LABEL]
    if not len(there):
        raise FedsmooError(f"{where}: no position has a label: all are {NO_LABEL}")
    if int(there.min()) < 0 or int(there.max()) >= dataset.classes:
        none = f", or be {NO_LABEL} where there is none" if y.dim() > 1 else ""
        raise FedsmooError(
            f"{where}: labels run from {int(there.min())} to {int(there.max())}, but must lie between 0 and "
            f"{dataset.classes - 1}{none}"
        )


def is_sequence(dataset: Dataset, x: Tensor, y: Tensor) -> bool:
    """Return whether labels are one for each position of samples: tokens ``[N, T]`` or vectors ``[N, T, F]``."""
    if y.dim() != 2 or y.shape[1] < 2:
        return False
    one = x[:, 0] if dataset.inputs and x.dim() > 2 else x  # of several inputs all have the same positions
    return one.dim() == (3 if x.is_floating_point() else 2) and one.shape[1] == y.shape[1]


def classes_to_divide_by(data: Dataset) -> tuple[np.ndarray, int]:
    """Return a class for each training sample, by which partitions divide, and how many there are.

    A sequence counts by its first labelled position (one without a label as class 0), a sample with several labels by
    the first of them (one without any as a class of its own), and numbers by which tenth of the samples they lie in,
    as large as they are: by the first number, where there are several.
    """
    y = data.y_train.cpu().numpy()
    if data.target == NUMBERS:
        first = y.reshape(len(y), -1)[:, 0]
        return np.searchsorted(np.quantile(first, np.arange(1, BINS) / BINS), first, side="left"), BINS
    if data.target == LABELS:
        return np.where(y.any(1), y.argmax(1), data.classes), data.classes + 1
    if y.ndim == 1:
        return y, data.classes
    first = y[np.arange(len(y)), (y != NO_LABEL).argmax(1)]
    return np.where(first == NO_LABEL, 0, first), data.classes


def names_to_divide_by(data: Dataset) -> tuple[str, ...] | None:
    """Return the names of the classes that :func:`classes_to_divide_by` returns; ``None`` where they have none."""
    if data.target == NUMBERS:
        return tuple(f"tenth {k + 1}" for k in range(BINS))
    if data.target == LABELS:
        return (*(data.class_names or map(str, range(data.classes))), "none")
    return data.class_names
