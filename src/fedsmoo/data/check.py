"""Bad data said in one line, before anything trains on it; and data sets from arrays that are already in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.dataset import Dataset


def check(dataset: Dataset) -> Dataset:
    """The data set itself if nothing is wrong with it; otherwise an error that says what and where."""
    if dataset.classes < 1:
        raise FedsmooError(f"data set {dataset.name}: {dataset.classes} classes, but at least 1 is needed")
    for part in ("train", "test"):
        _check_part(dataset, part, getattr(dataset, f"x_{part}"), getattr(dataset, f"y_{part}"))
    if dataset.x_train.shape[1:] != dataset.x_test.shape[1:]:
        raise FedsmooError(
            f"data set {dataset.name}: training samples have shape {list(dataset.x_train.shape[1:])}, test samples "
            f"{list(dataset.x_test.shape[1:])}; both must be alike"
        )
    _check_scale(dataset)
    for i, samples in enumerate(dataset.natural or ()):
        if samples.numel() == 0 or samples.min() < 0 or samples.max() >= len(dataset.x_train):
            raise FedsmooError(f"data set {dataset.name}: natural client {i} is empty or points outside the data")
    return dataset


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
        raise FedsmooError(f"{where}: labels are {y.dtype}, but must be whole numbers (int64)")
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


def from_arrays(x_train: Any, y_train: Any, x_test: Any, y_test: Any, name: str = "custom") -> Dataset:
    """A data set from tensors or arrays.

    uint8 images may be ``[N, H, W]``, ``[N, H, W, 1 or 3]`` or ``[N, 1 or 3, H, W]`` and are normalised by their own
    mean and std; floats and integers (text) are taken as they are. Labels may be of any whole-number type.

    >>> data = from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], np.zeros((2, 2)), [0, 1])
    >>> data.classes, data.x_train.dtype
    (2, torch.float64)
    """
    xs = [_samples(x, f"{name}: x_{part}") for x, part in ((x_train, "train"), (x_test, "test"))]
    ys = [_labels(y, f"{name}: y_{part}") for y, part in ((y_train, "train"), (y_test, "test"))]
    classes = 1 + max((int(y.max()) for y in ys if y.numel()), default=0)
    dataset = Dataset(name, xs[0], ys[0], xs[1], ys[1], classes)
    if dataset.is_image and len(xs[0]):
        mean, std = channel_statistics(xs[0])
        dataset = dataclasses.replace(dataset, mean=mean, std=std)
    return check(dataset)


def _samples(x: Any, what: str) -> Tensor:
    tensor = _tensor(x, what)
    if tensor.dtype == torch.uint8:
        return as_images(tensor, what)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor if tensor.is_floating_point() else tensor.long()


def _labels(y: Any, what: str) -> Tensor:
    tensor = _tensor(y, what)
    if tensor.is_floating_point() and not bool((tensor == tensor.round()).all()):
        raise FedsmooError(f"{what}: labels must be whole numbers, but some are not (NaN counts as not)")
    if tensor.dim() == 2 and tensor.shape[1] == 1:  # the column vectors of other simulators
        tensor = tensor[:, 0]
    return tensor.long()


def _tensor(values: Any, what: str) -> Tensor:
    try:
        tensor = values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    except (TypeError, ValueError) as error:
        raise FedsmooError(f"{what}: cannot be read as an array of numbers ({error})") from None
    if tensor.dim() == 0:
        raise FedsmooError(f"{what}: a single number, but an array with one row per sample is needed")
    if tensor.is_complex():
        raise FedsmooError(f"{what}: complex numbers are not supported")
    return tensor


def as_images(x: Tensor, what: str) -> Tensor:
    """uint8 images as ``[N, H, W, channels]``, whichever of the usual layouts they came in."""
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
    """Mean and std per channel of uint8 images, of values in 0..1, exact by counting the 256 values.

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


def checked(indices: Sequence[np.ndarray], samples: int, where: str) -> list[np.ndarray]:
    """Lists of indices that every client can train on: whole numbers inside the data, none of them empty."""
    if not len(indices):
        raise FedsmooError(f"{where}: no clients")
    out = []
    for i, mine in enumerate(indices):
        array = np.asarray(mine)
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
