"""Bad data said in one line, before anything trains on it; and data sets from arrays that are already in memory."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, FedsmooWarning, brief, unknown
from fedsmoo.data.beside import check_beside, with_mean_one
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.targets import CLASSES, NUMBERS, TARGETS, check_targets, count_outputs, read_targets

PARTS = ("x_train", "y_train", "x_test", "y_test")
ROWS = 4096  # looked at together: what is mapped into memory is never loaded whole


def check(dataset: Dataset) -> Dataset:
    """Return the data set itself; raise ``FedsmooError`` if something is wrong with it, which says what and where."""
    for name in PARTS:
        if not isinstance(getattr(dataset, name), Tensor):
            kind = type(getattr(dataset, name)).__name__
            raise FedsmooError(f"data set {dataset.name}: {name} is a {kind}, but must be a tensor: use from_arrays")
    if dataset.target not in TARGETS:
        raise FedsmooError(f"data set {dataset.name}: {unknown('target', str(dataset.target), TARGETS)}")
    if dataset.classes < (dataset.target != NUMBERS):
        raise FedsmooError(f"data set {dataset.name}: {dataset.classes} classes, but at least 1 is needed")
    for part in ("train", "test"):
        _check_part(dataset, part, getattr(dataset, f"x_{part}"), getattr(dataset, f"y_{part}"))
    _check_alike(dataset)
    _check_scale(dataset)
    check_beside(dataset)
    return dataset


def _check_alike(dataset: Dataset) -> None:
    """Both parts have samples of one shape and kind; no test part is like any."""
    if not dataset.has_test:
        return
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
    if dataset.y_train.shape[1:] != dataset.y_test.shape[1:] and dataset.target != CLASSES:
        raise FedsmooError(
            f"data set {dataset.name}: targets of the training part have shape {list(dataset.y_train.shape[1:])}, of "
            f"the test part {list(dataset.y_test.shape[1:])}; both must be alike"
        )


def check_own_classes(data: Dataset) -> None:
    """Refuse data of one's own whose test part has classes that nobody trains on, as class folders are refused.

    Classes that are numbered from 1 get a line: a model has one output more than there are classes.
    """
    if data.target != CLASSES or data.y_train.dim() != 1 or data.y_test.dim() != 1:
        return
    strange = sorted(set(data.y_test.tolist()) - set(data.y_train.tolist()))
    if strange:
        raise FedsmooError(
            f"data set {data.name}: the test part has samples of class {strange[0]}, but the training part has none; "
            "add some, or leave those samples out"
        )
    least, most = int(data.y_train.min()), int(data.y_train.max())
    if least == 1 and data.class_names is None:
        say = f"data set {data.name}: labels are 1 to {most}, none is 0, and a model needs {most + 1} outputs"
        warnings.warn(f"{say}; if classes are numbered from 1, take 1 off every label", FedsmooWarning, stacklevel=2)


def kind_of(x: Tensor) -> str:
    """Return what samples are taken for: images, numbers or text."""
    return "images" if x.dtype == torch.uint8 else "numbers" if x.is_floating_point() else "text"


def _check_part(dataset: Dataset, part: str, x: Tensor, y: Tensor) -> None:
    where = f"data set {dataset.name}, {part} part"
    if len(x) == 0 and part == "train":
        raise FedsmooError(f"{where}: it is empty; at least one sample is needed")
    if len(x) != len(y):
        raise FedsmooError(f"{where}: {len(x)} samples but {len(y)} labels; each sample needs one")
    if len(x) == 0:
        return
    if x.is_floating_point():
        good = torch.cat([torch.isfinite(some.flatten(1)).all(1) for some in x.reshape(len(x), -1).split(ROWS)])
        if not bool(good.all()):
            first = int((~good).nonzero()[0])
            raise FedsmooError(
                f"{where}: {int((~good).sum())} of {len(x)} samples hold NaN or infinite values, the first is sample "
                f"{first}; remove or repair them"
            )
    check_targets(dataset, where, x, y)


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
    if max(dataset.mean) > 1:
        raise FedsmooError(f"data set {dataset.name}: mean {dataset.mean} is not of values in 0..1: divide it by 255")


def from_arrays(
    x_train: Any,
    y_train: Any,
    x_test: Any = None,
    y_test: Any = None,
    name: str = "custom",
    *,
    target: str | None = None,
    inputs: Sequence[str] | None = None,
    weights: Any = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Dataset:
    """Return a data set from tensors or arrays.

    uint8 images may be ``[N, H, W]``, ``[N, H, W, 1 or 3]`` or ``[N, 1 or 3, H, W]`` and are normalised by the mean and
    std of the training part, unless others are given; floats and integers (text) are taken as they are. Labels of any
    whole-number type, or bool, are classes; floats with fractions are the targets of a regression.

    Args:
        x_train, y_train, x_test, y_test: samples and labels; there may be no test part.
        name: of the data set.
        target: what the labels are, where their type does not say it: ``"classes"``, ``"numbers"`` (of a regression),
            or ``"labels"`` (several of them, a matrix ``[N, K]`` of 0 and 1).
        inputs: names of several inputs that lie stacked on axis 1 of the samples, as the model's ``forward`` has them.
        weights: how much each training sample counts in the loss of local steps, 0 or above; they are divided by their
            mean, so that equal ones change nothing.
        mean, std: by which images are normalised, of values in 0..1, one for each channel: where several machines hold
            parts of the data, all of them need the same.

    >>> data = from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], np.zeros((2, 2)), [0, 1])
    >>> data.classes, data.x_train.dtype
    (2, torch.float64)
    >>> from_arrays(np.zeros((4, 2)), [0.5, 1.0, 0.0, 1.0]).target
    'numbers'
    """
    x, y = samples_of(x_train, f"{name}: x_train"), tensor_of(y_train, f"{name}: y_train")
    none = x_test is None and y_test is None
    x_other = x[:0] if none else samples_of(x_test, f"{name}: x_test")
    y_other = y[:0] if none else tensor_of(y_test, f"{name}: y_test")
    if not len(x_other) and not len(y_other):  # of whichever shape and type
        x_other, y_other = x[:0], y[:0]
    y, y_other, kind = read_targets(y, y_other, name, target)
    dataset = Dataset(name, x, y, x_other, y_other, count_outputs([y, y_other], kind, name), target=kind)
    names = None if inputs is None else tuple(inputs) if not isinstance(inputs, str) else (inputs,)
    counts = None if weights is None else with_mean_one(tensor_of(weights, f"{name}: weights"))
    if mean is None and std is None and dataset.is_image and len(x):
        mean, std = channel_statistics(x)
    means, stds = channel_values(mean, "mean", name), channel_values(std, "std", name)
    return check(dataclasses.replace(dataset, inputs=names, weights=counts, mean=means, std=stds))


def channel_values(given: Sequence[float] | None, what: str, name: str) -> tuple[float, ...] | None:
    """Return the mean or std of images as a data set holds it, one number per channel; refuse anything else."""
    if given is None:
        return None
    try:
        return tuple(float(each) for each in given)
    except (TypeError, ValueError):
        raise FedsmooError(
            f"data set {name}: {what} is {brief(given)}, but must be one number for each channel, such as [0.5]"
        ) from None


def samples_of(x: Any, what: str) -> Tensor:
    """Return samples as a data set keeps them: images as uint8 ``[N, H, W, channels]``, floats, or int64."""
    tensor = tensor_of(x, what)
    if tensor.dtype == torch.uint8:
        return as_images(tensor, what)
    if tensor.dtype in (torch.float16, torch.bfloat16, torch.bool):
        return tensor.float()
    return tensor if tensor.is_floating_point() else tensor.long()


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
            found = np.asarray(values)
            refuse_no_numbers(found, what)
            found = found.astype(found.dtype.newbyteorder("="), copy=False)  # files may have the other order of bytes
            tensor = torch.from_numpy(np.require(found, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        why = str(error).partition(" The only supported")[0]
        raise FedsmooError(f"{what}: cannot be read as an array of numbers ({why})") from None
    if tensor.dim() == 0:
        raise FedsmooError(f"{what}: a single number, but an array with one row per sample is needed")
    if tensor.is_complex():
        raise FedsmooError(f"{what}: complex numbers are not supported")
    return tensor


def refuse_no_numbers(found: np.ndarray, what: str) -> None:
    """Refuse text, and arrays of objects, in words that say what to do about them."""
    kind = found.dtype.kind
    if kind in "US" or (kind == "O" and found.size and all(isinstance(v, str | bytes) for v in found.flat)):
        raise FedsmooError(
            f"{what}: cannot be read as an array of numbers, it holds text: number classes by np.unique(names, "
            "return_inverse=True)[1], over both parts together; tokenise texts"
        )
    if kind == "O":
        odd = next((v for v in found.flat if not isinstance(v, bool | int | float | np.number)), None)
        raise FedsmooError(
            f"{what}: cannot be read as an array of numbers: it is one of objects, such as {brief(odd)}; make rows "
            "equally long, fill what is missing, and use np.array(values.tolist())"
        )


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
    for channel in range(x.shape[-1]):
        counts = [torch.bincount(some[..., channel].reshape(-1), minlength=256) for some in x.split(ROWS)]
        weight = torch.stack(counts).sum(0).double()
        m = float((weight * levels).sum() / weight.sum())
        s = float(((weight * (levels - m) ** 2).sum() / weight.sum()).sqrt())
        mean.append(m)
        std.append(s if s > 0 else 1.0)
    return tuple(mean), tuple(std)


def check_indices(indices: Sequence[Any] | np.ndarray, samples: int, where: str) -> list[np.ndarray]:
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
