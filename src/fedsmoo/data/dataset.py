"""A data set in memory: what every source returns and every engine reads."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedsmoo.data.catalog import OFFICIAL
from fedsmoo.data.fingerprint import Fingerprint


@dataclass(frozen=True)
class Dataset:
    """Samples and labels, once, on one device; a client is a list of indices into the training part.

    Images are uint8 ``[N, H, W, 3 or 1]`` with the ``mean`` and ``std`` (of values in 0..1, per channel) that
    normalise them on the device; other inputs are float ``[N, ...]`` or, for text, integer ``[N, T]`` tensors and have
    neither. Labels are int64 ``[N]``, or ``[N, T]`` where every position has one.
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

    @property
    def is_image(self) -> bool:
        return self.x_train.dtype == torch.uint8

    def to(self, device: torch.device | str) -> Dataset:
        """Return the same data on another device (a copy once, not per client)."""
        moved = {k: getattr(self, k).to(device) for k in ("x_train", "y_train", "x_test", "y_test")}
        other = dataclasses.replace(self, **moved)
        if "fingerprint" in self.__dict__:
            other.__dict__["fingerprint"] = self.fingerprint  # where the samples lie does not change what they are
        return other

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What the samples and labels are, as hashes; taken once."""
        return Fingerprint.of((self.x_train, self.y_train), (self.x_test, self.y_test))

    @property
    def official(self) -> bool:
        """Whether this is what the publisher of the data set of this name published, in whatever order and form."""
        return self.verified or OFFICIAL.get(self.name) == self.fingerprint.content

    @property
    def content_hash(self) -> str:
        """SHA-256 of samples and labels, so that a split file can refuse other data."""
        digest = hashlib.sha256()
        for part in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()
