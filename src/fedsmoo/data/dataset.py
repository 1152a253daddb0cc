"""A data set in memory: what every source returns and every engine reads."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.catalog import OFFICIAL
from fedsmoo.data.fingerprint import Fingerprint

PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Dataset:
    """Samples and labels, once, on one device; a client is a list of indices into the training part.

    Images are uint8 ``[N, H, W, 3 or 1]`` with the ``mean`` and ``std`` (of values in 0..1, per channel) that
    normalise them on the device; other inputs are float ``[N, ...]`` or, for text, integer ``[N, T]`` tensors and have
    neither. The ``target`` says what the labels are: ``classes``, int64 ``[N]``, or ``[N, T]`` where every position has
    one (-100: none); ``numbers``, floats ``[N]`` or ``[N, D]``; ``labels``, 0 or 1 for each of K, floats ``[N, K]``.
    ``classes`` counts the classes or the labels, and is 0 for numbers. A test part may be empty.

    A model that takes several inputs by name (``input_ids``, ``attention_mask``) finds them stacked on axis 1,
    ``[N, F, ...]``, and their names in ``inputs``. ``weights`` say how much each training sample counts in the loss.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: bool = False  # whether random flips and crops make sense for these images
    class_names: tuple[str, ...] | None = None
    # Natural clients, where the data has them (a speaker, a device): client -> indices.
    natural: tuple[Tensor, ...] | None = field(default=None, repr=False)
    verified: bool = False  # read from files that had the publisher's checksums
    inputs: tuple[str, ...] | None = None  # the names of F inputs, stacked on axis 1
    # [N], above 0 and with mean 1, so that samples of equal weight train as they do without; None: all count alike.
    weights: Tensor | None = field(default=None, repr=False)
    target: str = "classes"  # or "numbers" (a regression), or "labels" (several of them)
    # Test samples of each natural client's own, where it has some: client -> indices of the test part.
    natural_test: tuple[Tensor, ...] | None = field(default=None, repr=False)

    @property
    def is_image(self) -> bool:
        return self.x_train.dtype == torch.uint8

    @property
    def outputs(self) -> int:
        """How many outputs a model needs: one for each class or label, or for each number."""
        return self.y_train[:1].reshape(1, -1).shape[1] if self.target == "numbers" else self.classes

    @property
    def has_test(self) -> bool:
        """Whether there is a test part."""
        return len(self.x_test) > 0

    @property
    def nbytes(self) -> int:
        """The bytes of all samples and labels."""
        return sum(getattr(self, k).nbytes for k in PARTS)

    def to(self, device: torch.device | str, staged: bool = False) -> Dataset:
        """Return the same data on another device (a copy once, not per client).

        With ``staged``, samples and labels lie in the host's memory, and only how much each counts on the device.
        """
        place = torch.device(device)
        there = dict.fromkeys(PARTS, torch.device("cpu") if staged else place)
        there |= {} if self.weights is None else {"weights": place}
        if place.type == "cuda":
            moving = sum(getattr(self, k).nbytes for k, to in there.items() if getattr(self, k).device.type != to.type)
            refuse_too_large(self.name, moving, torch.cuda.mem_get_info(place)[0])
        return self._same(**{k: getattr(self, k).to(to) for k, to in there.items()})

    def renamed(self, name: str) -> Dataset:
        """Return the same data under another name."""
        return self._same(name=name)

    def with_inputs(self, x_train: Tensor) -> Dataset:
        """Return the data with training inputs as clients see them; it stays known by what it was made from."""
        _ = self.fingerprint
        return self._same(x_train=x_train)

    def _same(self, **changes: Any) -> Dataset:
        """Return the data with changes that leave it what it is: where samples lie, what it is called."""
        other = dataclasses.replace(self, **changes)
        if "fingerprint" in self.__dict__:
            other.__dict__["fingerprint"] = self.fingerprint
        return other

    def own_tests(self, indices: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return test samples of each client's own, by index; ``None`` if there are none, or these are other clients.

        A client may train on a part of what is its own, as where some of it is held out.
        """
        if self.natural is None or self.natural_test is None or len(indices) != len(self.natural):
            return None
        if not all(np.isin(held, mine.numpy()).all() for held, mine in zip(indices, self.natural, strict=True)):
            return None
        return [i.long().numpy() for i in self.natural_test]  # torch.tensor([]) is of floats

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What the samples and labels are, as hashes; taken once."""
        kind = None if self.target == "classes" else self.target  # the same floats may be numbers or labels
        both = (self.x_train, self.y_train), (self.x_test, self.y_test)
        return Fingerprint.of(*both, self.inputs, None if self.weights is None else self.weights.float(), kind)

    @property
    def official(self) -> bool:
        """Whether this is what the publisher of the data set of this name published, in whatever order and form."""
        return self.verified or OFFICIAL.get(self.name) == self.fingerprint.content

    @property
    def content_hash(self) -> str:
        """SHA-256 of samples and labels, so that a split file can refuse other data."""
        digest = hashlib.sha256()
        more = () if self.weights is None else (self.weights.float(),)  # as they were once kept, for splits of before
        digest.update("".join(f"{name}|" for name in self.inputs or ()).encode())
        for part in (*(getattr(self, k) for k in PARTS), *more):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()


def refuse_too_large(name: str, needed: int, free: int) -> None:
    """Refuse samples that do not fit on a GPU, where all of them lie during a run."""
    if needed > free:
        raise FedsmooError(
            f"data set {name}: {needed / 2**30:.1f} GiB of samples, but the GPU has {free / 2**30:.1f} GiB free: set "
            "samples_in to host, from where batches are copied as they are needed, or end what else uses the GPU"
        )


def refuse_beyond_type(data: Dataset, dtype: torch.dtype) -> None:
    """Refuse samples and numbers that become infinite in the type in which a model computes."""
    most = torch.finfo(dtype).max
    for name in PARTS:
        part = getattr(data, name)
        if not part.is_floating_point() or torch.finfo(part.dtype).max <= most or not part.numel():
            continue
        flat = part.reshape(len(part), -1)
        large = torch.cat([(some.abs() > most).any(1) for some in flat.split(4096)])
        if bool(large.any()):
            kind = str(dtype).removeprefix("torch.")
            raise FedsmooError(
                f"data set {data.name}: {name} holds values beyond {most:.2g}, which are infinite in {kind}, the first "
                f"at sample {int(large.nonzero()[0])}: scale them, or set dtype to float64"
            )
