"""Where each named parameter lies in a flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class Layout:
    """The names, shapes and offsets of a model's parameters in one flat vector of ``size`` numbers.

    >>> layout = Layout({"weight": (2, 3), "bias": (2,)})
    >>> layout.size, layout.split(torch.arange(8.0))["bias"]
    (8, tensor([6., 7.]))
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.offsets: dict[str, int] = {}
        self.size = 0
        for name, shape in self.shapes.items():
            self.offsets[name] = self.size
            self.size += math.prod(shape)

    def split(self, v: Tensor) -> dict[str, Tensor]:
        """Views of the parameters in ``v``: ``[..., P] -> {name: [..., *shape]}``."""
        lead = v.shape[:-1]
        return {
            name: v[..., self.offsets[name] : self.offsets[name] + math.prod(shape)].reshape(lead + shape)
            for name, shape in self.shapes.items()
        }

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of named parameters: the inverse of :meth:`split`, leading axes kept."""
        lead = {n: parts[n].shape[: parts[n].dim() - len(s)] for n, s in self.shapes.items()}
        return torch.cat([parts[n].reshape(*lead[n], -1) for n in self.shapes], dim=-1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and list(self.shapes.items()) == list(other.shapes.items())

    def __hash__(self) -> int:
        return hash(tuple(self.shapes.items()))
