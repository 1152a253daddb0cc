"""Bad data said in one line, before anything trains on it; and data sets from arrays that are already in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.beside import check_beside, mean_one
from fedsmoo.data.dataset import Dataset

PARTS = ("x_train", "y_train", "x_test", "y_test")
MANY = 100_000  # classes that few samples may have: the words of a language, not somebody's telephone numbers


def check(dataset: Dataset) -> Dataset:
    """Return the data set itself; raise ``FedsmooError`` if something is wrong with it, which says what and where."""
    for name in PARTS:
        if not isinstance(getattr(dataset, name), Tensor):
            kind = type(getattr(dataset, name)).__name__
            raise FedsmooError(f"data set {dataset.name}: {name} is a {kind}, but must be a tensor: use from_arrays")
    if dataset.classes < 1:
        raise FedsmooError(f"data set {dataset.name}: {dataset.classes} classes, but at least 1 is needed")
    for part in ("train", "test"):
        _check_part(dataset, part, getattr(dataset, f"x_{part}"), getattr(dataset, f"y_{part}"))
    if dataset.x_train.shape[1:] != dataset.x_test.shape[1:]:
        raise FedsmooError(
            f"data set {dataset.name}: training samples have shape {list(dataset.x_train.shape[1:])}, test samples "
            f"{list(dataset.x_test.shape[1:])}; both must be alike"
        )
    if kind_of(dataset.x_train) != kind_of(dataset.x_test):
        raise FedsmooError(
            f"data set {dataset.name}: training samples are {dataset.x_train.dtype}, test samples "
            f"{dataset.x_test.dtype}; both must be alike"
        )
    _check_scale(dataset)
    check_beside(dataset)
    for i, samples in enumerate(dataset.natural or ()):
        if samples.numel() == 0 or samples.min() < 0 or samples.max() >= len(dataset.x_train):
            raise FedsmooError(f"data set {dataset.name}: natural client {i} is empty or points outside the data")
    return dataset


def refuse_untrained_classes(data: Dataset) -> None:
    """Refuse data of one's own whose test part has classes that nobody trains on, as class folders are refused."""
    if data.y_train.dim() != 1 or data.y_test.dim() != 1:
        return
    strange = sorted(set(data.y_test.tolist()) - set(data.y_train.tolist()))
    if strange:
        raise FedsmooError(
            f"data set {data.name}: the test part has samples of class {strange[0]}, but the training part has none; "
            "add some, or leave those samples out"
        )


def kind_of(x: Tensor) -> str:
    """Return what samples are taken for: images, numbers or text."""
    return "images" if x.dtype == torch.uint8 else "numbers" if x.is_floating_point() else "text"


def _check_part(dataset: Dataset, part: str, x: Tensor, y: Tensor) -> None:
    where = f"data set {dataset.name}, {part} part"
    if len(x) == 0:
        raise FedsmooError(f"{where}: it is empty; at least one sample is needed")
    if len(x) != len(y):
        raise FedsmooError(f"{where}: {len(x)} samples but {len(y)} labels; each sample needs one")
    if x.is_floating_point():
        good = torch.isfinite(x.reshape(len(x), -1)).all(1)
        if not bool(good.all()):
            first = int((~good).nonzero()[0])
            raise FedsmooError(
                f"{where}: {int((~good).sum())} of {len(x)} samples hold NaN or infinite values, the first is sample "
                f"{first}; remove or repair them"
            )
    if y.dtype != torch.int64:
        raise FedsmooError(f"{where}: labels are {y.dtype}, but must be whole numbers (int64): use y.long()")
    one = x[:, 0] if dataset.inputs and x.dim() > 2 else x  # of several inputs all have the same places
    places = y.dim() == 2 and y.shape[1] > 1 and one.dim() == (3 if x.is_floating_point() else 2)
    if y.dim() != 1 and not (places and y.shape[1] == one.shape[1]):  # a label for each place of a sequence
        raise FedsmooError(
            f"{where}: labels have shape {list(y.shape)}, but each sample needs one class, [{len(x)}] (of one-hot "
            "labels: y.argmax(1))"
        )
    if int(y.min()) < 0 or int(y.max()) >= dataset.classes:
        raise FedsmooError(
            f"{where}: labels run from {int(y.min())} to {int(y.max())}, but must lie between 0 and "
            f"{dataset.classes - 1}"
        )


def _check_scale(dataset: Dataset) -> None:
    """Mean and std come together, one per channel, and no std is zero."""
    if (dataset.mean is None) != (dataset.std is None):
        raise FedsmooError(f"data set {dataset.name}: give both mean and std, or neither")
    if dataset.mean is None or dataset.std is None:
        return
    channels = dataset.x_train.shape[-1]
    if not dataset.is_image or dataset.x_train.dim() != 4 or not len(dataset.mean) == len(dataset.std) == channels:
        raise FedsmooError(
            f"data set {dataset.name}: mean and std are for uint8 images [N, H, W, channels], one value per channel"
        )
    if not all(np.isfinite([*dataset.mean, *dataset.std])) or min(dataset.std) <= 0:
        raise FedsmooError(f"data set {dataset.name}: mean {dataset.mean} or std {dataset.std} cannot normalise")


def from_arrays(
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    name: str = "custom",
    *,
    inputs: Sequence[str] | None = None,
    weights: Any = None,
) -> Dataset:
    """Return a data set from tensors or arrays.

    uint8 images may be ``[N, H, W]``, ``[N, H, W, 1 or 3]`` or ``[N, 1 or 3, H, W]`` and are normalised by their own
    mean and std; floats and integers (text) are taken as they are. Labels may be of any whole-number type, or bool.

    Args:
        x_train, y_train, x_test, y_test: samples and labels.
        name: of the data set.
        inputs: names of several inputs that lie stacked on axis 1 of the samples, as the model's ``forward`` has them.
        weights: how much each training sample counts in the loss of local steps, 0 or above; they are divided by their
            mean, so that equal ones change nothing.

    >>> data = from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], np.zeros((2, 2)), [0, 1])
    >>> data.classes, data.x_train.dtype
    (2, torch.float64)
    """
    xs = [_samples(x, f"{name}: x_{part}") for x, part in ((x_train, "train"), (x_test, "test"))]
    ys = [labels_of(y, f"{name}: y_{part}") for y, part in ((y_train, "train"), (y_test, "test"))]
    classes = max(1, count_classes(ys, name))
    names = None if inputs is None else tuple(inputs) if not isinstance(inputs, str) else (inputs,)
    counts = None if weights is None else mean_one(tensor_of(weights, f"{name}: weights"))
    dataset = Dataset(name, xs[0], ys[0], xs[1], ys[1], classes, inputs=names, weights=counts)
    if dataset.is_image and len(xs[0]):
        mean, std = channel_statistics(xs[0])
        dataset = dataclasses.replace(dataset, mean=mean, std=std)
    return check(dataset)


def _samples(x: Any, what: str) -> Tensor:
    tensor = tensor_of(x, what)
    if tensor.dtype == torch.uint8:
        return as_images(tensor, what)
    if tensor.dtype in (torch.float16, torch.bfloat16, torch.bool):
        return tensor.float()
    return tensor if tensor.is_floating_point() else tensor.long()


def labels_of(y: Any, what: str) -> Tensor:
    """Return labels of any whole-number type as int64 ``[N]``; refuse floats, which may be no classes."""
    tensor = tensor_of(y, what)
    if tensor.is_floating_point() and tensor.numel():
        raise FedsmooError(
            f"{what}: labels must be whole numbers, but are {str(tensor.dtype).removeprefix('torch.')}: convert "
            "classes with y.astype(int) or y.long(); targets of a regression are not supported yet"
        )
    if tensor.dim() == 2 and tensor.shape[1] == 1:  # the column vectors of other simulators
        tensor = tensor[:, 0]
    if tensor.dtype == torch.uint64 and tensor.numel() and int(tensor.view(torch.int64).min()) < 0:
        raise FedsmooError(f"{what}: labels go beyond {2**63 - 1}: number the classes from 0")
    return tensor.long()


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


def tensor_of(values: Any, what: str) -> Tensor:
    """Return an array, a list or a tensor as a dense tensor of numbers; refuse anything else."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise FedsmooError(f"{what}: some values are masked; fill them, or leave those samples out")
    if isinstance(values, Tensor) and (values.layout != torch.strided or values.is_meta):
        raise FedsmooError(f"{what}: a sparse tensor, or one without values: give a dense one, x.to_dense()")
    try:
        if isinstance(values, Tensor):
            tensor = values.detach()
        else:
            tensor = torch.from_numpy(np.require(np.asarray(values), requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        why = str(error).partition(" The only supported")[0]
        raise FedsmooError(f"{what}: cannot be read as an array of numbers ({why})") from None
    if tensor.dim() == 0:
        raise FedsmooError(f"{what}: a single number, but an array with one row per sample is needed")
    if tensor.is_complex():
        raise FedsmooError(f"{what}: complex numbers are not supported")
    return tensor


def as_images(x: Tensor, what: str) -> Tensor:
    """Return uint8 images as ``[N, H, W, channels]``, whichever of the usual orders of axes they came in."""
    if x.dim() == 3:
        x = x.unsqueeze(-1)
    if x.dim() == 4 and x.shape[-1] not in (1, 3) and x.shape[1] in (1, 3):
        x = x.permute(0, 2, 3, 1)
    if x.dim() != 4 or x.shape[-1] not in (1, 3):
        raise FedsmooError(
            f"{what}: uint8 samples of shape {list(x.shape[1:])} are no images; use [N, H, W, 1 or 3], or floats"
        )
    return x.contiguous()


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std per channel of uint8 images, of values in 0..1, exact by counting the 256 values.

    A channel that never changes gets a std of 1: there is nothing to scale.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in x.unbind(-1):
        weight = torch.bincount(channel.reshape(-1), minlength=256).double()
        m = float((weight * levels).sum() / weight.sum())
        s = float(((weight * (levels - m) ** 2).sum() / weight.sum()).sqrt())
        mean.append(m)
        std.append(s if s > 0 else 1.0)
    return tuple(mean), tuple(std)


def checked(indices: Sequence[Any] | np.ndarray, samples: int, where: str) -> list[np.ndarray]:
    """Return lists of indices that clients can train on; refuse empty ones and indices outside the data."""
    if not len(indices):
        raise FedsmooError(f"{where}: no clients")
    out = []
    for i, mine in enumerate(indices):
        try:
            array = np.asarray(mine.cpu() if isinstance(mine, Tensor) else mine)
        except (TypeError, ValueError):  # lists of lists of different lengths
            array = np.array(None)
        if array.size == 0:
            raise FedsmooError(f"{where}: client {i} has no samples")
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise FedsmooError(f"{where}: client {i} is not a list of whole numbers")
        if array.min() < 0 or array.max() >= samples:
            raise FedsmooError(
                f"{where}: client {i} points to sample {array.min() if array.min() < 0 else array.max()}, but the "
                f"training part has samples 0 to {samples - 1}"
            )
        out.append(array.astype(np.int64))
    return out
