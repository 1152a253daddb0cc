"""Where each named parameter lies in a flat vector, and the parts of it that a method names."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.vectors import Vectors


class Layout:
    """The names, shapes and offsets of a model's parameters in one flat vector.

    ``count`` numbers are parameters; ``size`` is the vector's length, ``count`` rounded up to a multiple of ``align``.
    The numbers behind the parameters are zero and stay so: no method moves a number whose gradient is zero. ``words``
    stand for some parameters each, such as ``norms`` for those of normalisation layers.

    >>> layout = Layout({"weight": (2, 3), "bias": (2,)})
    >>> layout.size, layout.split(torch.arange(8.0))["bias"]
    (8, tensor([6., 7.]))
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], align: int = 1, words: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.words = dict(words or {})
        self.offsets: dict[str, int] = {}
        self.count = 0
        for name, shape in self.shapes.items():
            self.offsets[name] = self.count
            self.count += math.prod(shape)
        self.size = -(-self.count // align) * align
        self._sizes = [*map(math.prod, self.shapes.values()), self.size - self.count]  # the last: what is no parameter

    def split(self, v: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters in ``v``: ``[..., P] -> {name: [..., *shape]}``."""
        lead = v.shape[:-1]
        if not lead and self.size == len(v):  # one model: all its parts by one call
            return dict(zip(self.shapes, map(Tensor.view, v.split(self._sizes), self.shapes.values()), strict=False))
        return {
            name: v[..., self.offsets[name] : self.offsets[name] + math.prod(shape)].reshape(lead + shape)
            for name, shape in self.shapes.items()
        }

    def marked(self, patterns: str) -> Tensor:
        """Return where parameters lie whose names match one of some patterns, such as ``"fc.*,norm*"``: bool ``[P]``.

        The word ``last`` stands for the last layer: all parameters of the module that holds the last one; so do the
        layout's own ``words`` for others.

        >>> Layout({"fc.weight": (2,), "fc.bias": (1,), "out.bias": (1,)}).marked("*.bias").tolist()
        [False, False, True, True]

        Raises:
            FedsmooError: if a pattern matches nothing.
        """
        out = torch.zeros(self.size, dtype=torch.bool)
        module, dot, _ = list(self.shapes)[-1].rpartition(".")
        for pattern in (p.strip() for p in patterns.split(",")):
            names = fnmatch.filter(self.shapes, f"{module}.*" if pattern == "last" and dot else pattern)
            names = names or [n for n in self.shapes if n in self.words.get(pattern, ())]
            if not names and pattern in self.words:
                raise FedsmooError(f"the model has no {pattern}: name parameters, such as {next(iter(self.shapes))!r}")
            if not names:
                raise unknown("parameter", pattern, {*self.shapes, *(f"{n.rpartition('.')[0]}.*" for n in self.shapes)})
            for name in names:
                out[self.offsets[name] : self.offsets[name] + math.prod(self.shapes[name])] = True
        return out

    def names_in(self, marked: Tensor) -> list[str]:
        """Return the parameters all of whose numbers are marked: the inverse of :meth:`marked`.

        >>> layout = Layout({"fc.weight": (2,), "fc.bias": (1,), "out.bias": (1,)}, align=8)
        >>> layout.names_in(layout.marked("*.bias"))
        ['fc.bias', 'out.bias']
        """
        return [name for name, part in self.split(marked).items() if bool(part.all())]

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector of named parameters: the inverse of :meth:`split`, leading axes kept."""
        lead = next((parts[n].shape[: parts[n].dim() - len(s)] for n, s in self.shapes.items()), ())
        flat = [parts[n].reshape(*lead, -1) for n in self.shapes]
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


@dataclass(frozen=True)
class Masks:
    """A method's masks on one model: 0/1 vectors, neither sent nor kept, and where what they mark ``stays``.

    The server never learns what stays, so its own numbers there remain those it began with, and every client knows
    them from the beginning: none of them needs a message.
    """

    vectors: Vectors
    stays: Tensor | None = None  # bool [P]
    others: tuple[str, ...] = ()  # names that are no vectors of the model's size

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
        return cls(vectors, torch.stack(stays).any(0).to(like.device) if stays else None, other_sizes(algorithm))

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
        """Change every vector of the model's size where something stays."""
        if self.stays is None:
            return v
        stays = self.stays
        return Vectors(**{n: x if n in self.others else change(n, x, stays) for n, x in v.items()})


def other_sizes(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the declared names that are no vectors of the model's size: single numbers, and what has its own size."""
    return (*algorithm.scalars, *algorithm.sizes)


NONE = Masks(Vectors())
