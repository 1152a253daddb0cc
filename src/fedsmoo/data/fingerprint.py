"""What a data set holds, as hashes: the samples whatever their order, and their order apart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedsmoo.core.errors import FedsmooError

HEX = re.compile(r"[0-9a-f]{64}")
SHORT = 16  # hexadecimal digits that stand for the whole in a run's identity


@dataclass(frozen=True)
class Fingerprint:
    """SHA-256 of the training part, of the test part, and of the order in which the samples of both lie.

    A sample's digest is SHA-256 over its type, shape and bytes and over those of its label. A part's hash is SHA-256
    over its digests, sorted: the order of the samples does not matter, but a sample that is there twice counts twice.
    Two parts with one hash would need a collision of SHA-256 itself; a sum of the digests, which is order-free too,
    would not be as safe, for other digests with the same sum can be searched for. Names of inputs and a sample's weight
    go into its digest where a data set has them.
    """

    train: str
    test: str
    order: str

    @property
    def content(self) -> str:
        """Both parts in one hash, whatever the order in them."""
        return hashlib.sha256(f"{self.train} {self.test}".encode()).hexdigest()

    @property
    def short(self) -> str:
        """The content in a few digits."""
        return self.content[:SHORT]

    @classmethod
    def of(
        cls,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        inputs: tuple[str, ...] | None = None,
        weights: Tensor | None = None,
        target: str | None = None,
    ) -> Fingerprint:
        """Return the fingerprint of samples and labels, with what else there is.

        That is: names of inputs, weights, and what the labels are if they are no classes.
        """
        notes = (*(inputs or ()), *(() if target is None else (f"target={target}",)))
        both = [digests(*train, notes=notes, weights=weights), digests(*test, notes=notes)]
        first, second = (hashlib.sha256(b"".join(sorted(d))).hexdigest() for d in both)
        return cls(first, second, hashlib.sha256(b"|".join(b"".join(d) for d in both)).hexdigest())

    @classmethod
    def read(cls, value: Any, where: str) -> Fingerprint:
        """Read a fingerprint that was written down; refuse anything else."""
        found: dict[str, str] = {}
        for name in ("train", "test", "order"):
            text = value.get(name) if isinstance(value, dict) else None
            if not isinstance(text, str) or not HEX.fullmatch(text):
                raise FedsmooError(f"{where} is damaged: the fingerprint of its data has no {name} of 64 hex digits")
            found[name] = text
        return cls(**found)


def digests(x: Tensor, y: Tensor, notes: Sequence[str] = (), weights: Tensor | None = None) -> list[bytes]:
    """Return a digest for each sample with its label and weight, in their order."""
    parts = [array(part) for part in (x, y, weights) if part is not None]
    named = f"{','.join(notes)}|" if notes else ""
    start = hashlib.sha256(("".join(f"{a.dtype.name} {a.shape[1:]}|" for a in parts) + named).encode())
    out = []
    for fields in zip(*(rows(part) for part in parts), strict=True):
        sample = start.copy()
        for one in fields:
            sample.update(one)
        out.append(sample.digest())
    return out


def array(part: Tensor) -> np.ndarray:
    """Return a tensor as an array whose bytes are the same on every machine."""
    found = np.ascontiguousarray(part.detach().cpu().numpy())
    return found.astype(found.dtype.newbyteorder("<"), copy=False)


def rows(found: np.ndarray) -> np.ndarray:
    """Return the bytes of each entry."""
    return found.reshape(len(found), -1 if found.size else 1).view(np.uint8)
