"""Where each named parameter lies in a flat vector."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedsmoo.core.errors import unknown


class Layout:
    """The names, shapes and offsets of a model's parameters in one flat vector.

    ``count`` numbers are parameters; ``size`` is the vector's length, ``count`` rounded up to a multiple of ``align``.
    The numbers behind the parameters are zero and stay so: no method moves a number whose gradient is zero.

    >>> layout = Layout({"weight": (2, 3), "bias": (2,)})
    >>> layout.size, layout.split(torch.arange(8.0))["bias"]
    (8, tensor([6., 7.]))
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], align: int = 1) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.offsets: dict[str, int] = {}
        self.count = 0
        for name, shape in self.shapes.items():
            self.offsets[name] = self.count
            self.count += math.prod(shape)
        self.size = -(-self.count // align) * align

    def split(self, v: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters in ``v``: ``[..., P] -> {name: [..., *shape]}``."""
        lead = v.shape[:-1]
        return {
            name: v[..., self.offsets[name] : self.offsets[name] + math.prod(shape)].reshape(lead + shape)
            for name, shape in self.shapes.items()
        }

    def marked(self, patterns: str) -> Tensor:
        """Return where parameters lie whose names match one of some patterns, such as ``"fc.*,norm*"``: bool ``[P]``.

        >>> Layout({"fc.weight": (2,), "fc.bias": (1,), "out.bias": (1,)}).marked("*.bias").tolist()
        [False, False, True, True]

        Raises:
            FedsmooError: if a pattern matches nothing.
        """
        out = torch.zeros(self.size, dtype=torch.bool)
        for pattern in (p.strip() for p in patterns.split(",")):
            names = fnmatch.filter(self.shapes, pattern)
            if not names:
                raise unknown("parameter", pattern, {*self.shapes, *(f"{n.rpartition('.')[0]}.*" for n in self.shapes)})
            for name in names:
                out[self.offsets[name] : self.offsets[name] + math.prod(self.shapes[name])] = True
        return out

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector of named parameters: the inverse of :meth:`split`, leading axes kept."""
        lead = {n: parts[n].shape[: parts[n].dim() - len(s)] for n, s in self.shapes.items()}
        flat = [parts[n].reshape(*lead[n], -1) for n in self.shapes]
        if self.size > self.count:
            flat.append(flat[0].new_zeros(*flat[0].shape[:-1], self.size - self.count))
        return torch.cat(flat, dim=-1)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout)
            and self.size == other.size
            and list(self.shapes.items()) == list(other.shapes.items())
        )

    def __hash__(self) -> int:
        return hash(tuple(self.shapes.items()))
