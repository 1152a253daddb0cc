"""Named parts of the flat vector: the parameters that a method's masks mean, and those whose numbers do not travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.layout import Layout
from fedsmoo.core.vectors import Vectors


@dataclass(frozen=True)
class Masks:
    """A method's masks on one model: 0/1 vectors, neither sent nor kept, and where what they mark ``stays``.

    The server never learns what stays, so its own numbers there remain those it began with, and every client knows
    them from the beginning: none of them needs a message.
    """

    vectors: Vectors
    stays: Tensor | None = None  # bool [P]
    scalars: tuple[str, ...] = ()

    @classmethod
    def bind(cls, algorithm: Algorithm, layout: Layout, like: Tensor) -> Masks:
        """Return the masks of a method on a model.

        Raises:
            FedsmooError: if a pattern matches no parameter.
        """
        if not algorithm.masks:
            return NONE
        found = {name: layout.marked(patterns) for name, patterns in algorithm.masks.items()}
        stays = [found[name] for name in algorithm.stays]
        vectors = Vectors(**{name: m.to(like.device, like.dtype) for name, m in found.items()})
        return cls(vectors, torch.stack(stays).any(0).to(like.device) if stays else None, algorithm.scalars)

    @property
    def staying(self) -> int:
        """How many numbers of every vector do not travel."""
        return 0 if self.stays is None else int(self.stays.sum())

    def beside(self, v: Vectors) -> Vectors:
        """Return vectors with the masks beside them."""
        return v.replace(**dict(self.vectors.items())) if self.vectors.names() else v

    def sent(self, algorithm: Algorithm, server: Vectors) -> Vectors:
        """Return what clients have at hand in a round: what the server sends, and the masks."""
        return self.beside(algorithm.sent(self.beside(server)))

    def restored(self, v: Vectors, before: Vectors) -> Vectors:
        """Return vectors ``[.., P]`` with what stays as it was ``before``; zero where nothing was."""

        def one(name: str, new: Tensor, stays: Tensor) -> Tensor:
            old = getattr(before, name) if name in before.names() else torch.zeros_like(new)
            return torch.where(stays, old, new)

        return self._each(v, one)

    def cut(self, v: Vectors) -> Vectors:
        """Return vectors as they travel: without what stays."""
        return self._each(v, lambda name, x, stays: x[..., ~stays])

    def grown(self, v: Vectors, before: Vectors) -> Vectors:
        """Return vectors that have travelled in full, with what stays as it was ``before``; zero where nothing was."""

        def one(name: str, x: Tensor, stays: Tensor) -> Tensor:
            whole = x.new_zeros(*x.shape[:-1], len(stays))
            whole[..., ~stays] = x
            return whole

        return self.restored(self._each(v, one), before)

    def _each(self, v: Vectors, change: Callable[[str, Tensor, Tensor], Tensor]) -> Vectors:
        """Change every vector, and no single number, where something stays."""
        if self.stays is None:
            return v
        stays = self.stays
        return Vectors(**{n: x if n in self.scalars else change(n, x, stays) for n, x in v.items()})


NONE = Masks(Vectors())
