"""A data set in memory: what every source returns and every engine reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor


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

    @property
    def is_image(self) -> bool:
        return self.x_train.dtype == torch.uint8

    def to(self, device: torch.device | str) -> Dataset:
        """The same data on another device (a copy once, not per client)."""
        moved = {k: getattr(self, k).to(device) for k in ("x_train", "y_train", "x_test", "y_test")}
        return Dataset(**{**self.__dict__, **moved})

    @property
    def content_hash(self) -> str:
        """SHA-256 of samples and labels, so that a split file can refuse other data."""
        digest = hashlib.sha256()
        for part in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()
