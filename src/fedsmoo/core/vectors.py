"""Named flat vectors: the only thing that travels, is stored, or is averaged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Vectors:
    """A few named tensors, read as attributes and never changed in place.

    Each is ``[P]`` (one model) or ``[C, P]`` (C clients at once). A plain class with attributes, because
    ``torch.compile`` traces one without a graph break.

    >>> v = Vectors(w=torch.ones(2), s=torch.zeros(2))
    >>> v.replace(s=v.w + 1).s
    tensor([2., 2.])
    """

    def __init__(self, **parts: Tensor) -> None:
        self._names = tuple(parts)  # kept beside the attributes: compilers do not trace a walk over __dict__
        for name, v in parts.items():
            setattr(self, name, v)

    def __getattr__(self, name: str) -> Tensor:  # only called for what is missing
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"no vector named {name!r} here; there are: {', '.join(self._names) or 'none'}")

    def replace(self, **parts: Tensor) -> Vectors:
        """Return a copy with some vectors exchanged or added."""
        return Vectors(**{**dict(self.items()), **parts})

    def pick(self, names: tuple[str, ...]) -> Vectors:
        """Return only the named vectors."""
        return Vectors(**{n: getattr(self, n) for n in names})

    def map(self, f: Callable[[Tensor], Tensor]) -> Vectors:
        """Apply a function to each vector."""
        return Vectors(**{n: f(v) for n, v in self.items()})

    def names(self) -> tuple[str, ...]:
        return self._names

    def items(self) -> list[tuple[str, Tensor]]:
        return [(n, getattr(self, n)) for n in self._names]

    def __repr__(self) -> str:
        return f"Vectors({', '.join(f'{n}={tuple(v.shape)}' for n, v in self.items())})"


# Small enough to vanish beside any gradient that matters, large enough that 0 / (0 + EPS) is 0 in float32.
EPS = 1e-12


def norm(v: Tensor) -> Tensor:
    """Euclidean norm over the last axis, which is kept: ``[C, P] -> [C, 1]``."""
    length: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return length


def unit(v: Tensor) -> Tensor:
    """``v / (||v|| + eps)`` over the last axis; the zero vector stays zero."""
    return v / (norm(v) + EPS)
