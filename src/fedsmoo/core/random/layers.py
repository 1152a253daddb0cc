"""What a model draws in a local step, one tensor after the other, of one client or of C clients at once.

Each client draws from its own stream, "layers". C clients in one batch get, bit for bit, what each of them would get
alone: a client's stream goes on behind the numbers of its real samples, however many padding adds to the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.draw import drawn
from fedsmoo.core.random.noise import BLOCK, Noise, below_on_host, even, normal, uniform

NAME = "layers"


@dataclass(frozen=True)
class WatchedNoise(Noise):
    """Noise of one client that notes the shapes of all that is drawn from it, in order."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class ClientsNoise:
    """Where C clients draw in a local step: their keys ``[C, 2]`` and steps ``[C]``, both int64.

    ``real [C]`` counts the samples of each client's batch, whose ``width`` padding fills. ``axes`` says of every tensor
    that the model draws, in order, how many axes it has and which of them is the one of samples (``None``: none is).
    """

    keys: Tensor
    steps: Tensor
    real: Tensor
    width: int
    axes: tuple[tuple[int, int | None], ...]


class Numbers:
    """The numbers of one client.

    On a CPU a step's words are made at once: ``ahead`` is how many counters it will use, as far as that is known.
    """

    def __init__(self, noise: Noise, ahead: int = 0) -> None:
        self.noise, self.position, self.ahead = noise, 0, min(ahead, BLOCK)
        self.made, self.first = np.empty(0, np.uint32), 0  # words, and the counter of the first of them

    def uniform(self, like: Tensor) -> Tensor:
        """Return the next numbers in (0, 1), shaped as ``like``: float32."""
        return uniform(self._words(like.numel(), like)).view(like.shape)

    def below(self, like: Tensor, bound: float) -> Tensor:
        """Return which of the next numbers in (0, 1), shaped as ``like``, are less than a bound: bool."""
        if like.device.type == "cpu":
            return torch.from_numpy(below_on_host(self._on_host(like.numel(), like), bound)).view(like.shape)
        return self.uniform(like) < bound

    def normal(self, like: Tensor) -> Tensor:
        """Return the next standard normal numbers, shaped as ``like``: float32."""
        return normal(self._words(even(like.numel()), like))[: like.numel()].view(like.shape)

    def whole(self, like: Tensor) -> Tensor:
        """Return the next integers of 63 bits, shaped as ``like``: int64."""
        return join_words(self._words(2 * like.numel(), like).view(-1, 2)).view(like.shape)

    def _words(self, count: int, like: Tensor) -> Tensor:
        if like.device.type == "cpu":
            return torch.from_numpy(self._on_host(count, like).astype(np.int64))
        begin = self._advance(count, like)
        return self.noise.words(NAME, count, like.device, begin)

    def _on_host(self, count: int, like: Tensor) -> np.ndarray:
        begin = self._advance(count, like)
        if 4 * (begin - self.first) + count > len(self.made):
            self.made, self.first = self.noise.on_host(NAME, max(count, 4 * (self.ahead - begin)), begin), begin
        start = 4 * (begin - self.first)
        return self.made[start : start + count]

    def _advance(self, count: int, like: Tensor) -> int:
        """Go on behind the next ``count`` words; return the counter of the first of them."""
        if isinstance(self.noise, WatchedNoise):
            self.noise.shapes.append(tuple(like.shape))
        begin, self.position = self.position, self.position + -(-count // 4)
        return begin


class ClientsNumbers:
    """The numbers of C clients: tensors are ``[C, ...]``, or have the client axis folded into their first one."""

    def __init__(self, noise: ClientsNoise) -> None:
        self.noise, self.count = noise, 0
        self.position = torch.zeros_like(noise.steps)

    def uniform(self, like: Tensor) -> Tensor:
        """Return the next numbers in (0, 1), shaped as ``like``: float32."""
        return self._take("uniform", like)

    def below(self, like: Tensor, bound: float) -> Tensor:
        """Return which of the next numbers in (0, 1), shaped as ``like``, are less than a bound: bool."""
        return self._take("below", like, bound)

    def normal(self, like: Tensor) -> Tensor:
        """Return the next standard normal numbers, shaped as ``like``: float32."""
        return self._take("normal", like)

    def whole(self, like: Tensor) -> Tensor:
        """Return the next integers of 63 bits, shaped as ``like``: int64. Those of padding are -1: the largest, if
        taken modulo anything, so that a permutation leaves padding last."""
        return self._take("words", like)

    def _take(self, kind: str, like: Tensor, bound: float = 0.0) -> Tensor:
        n, clients = self.noise, len(self.noise.keys)
        rank, axis = self._axis()
        shape = like.shape[1:] if like.dim() > rank else (len(like) // clients, *like.shape[1:])
        count, words = prod(shape), 2 if kind == "words" else 1
        dtype = {"words": torch.int64, "below": torch.bool}.get(kind, torch.float32)
        room = torch.empty(words * count, dtype=dtype, device=like.device)
        found: Tensor = drawn(n.keys, n.steps, NAME, kind, room, self.position, bound)
        found = join_words(found.view(clients, count, 2)) if kind == "words" else found
        real = torch.full_like(n.steps, count)
        if axis is not None:
            if shape[axis] % n.width:
                raise FedsmooError(
                    f"a random layer draws {list(shape)} numbers for {n.width} samples: use engine=serial"
                )
            before, after = prod(shape[:axis]), prod(shape[axis:]) // n.width
            found = self._placed(found, before, after, kind == "words")
            real = n.real * (before * after)
        self.position = self.position + (words * real + 3) // 4
        return found.view(like.shape)

    def _axis(self) -> tuple[int, int | None]:
        if self.count >= len(self.noise.axes):
            raise FedsmooError(
                "the model draws random numbers oftener than in the look before training: use engine=serial"
            )
        self.count += 1
        return self.noise.axes[self.count - 1]

    def _placed(self, found: Tensor, before: int, after: int, mark: bool) -> Tensor:
        """Give numbers in the order of a client's own batch the places they have in the padded one.

        Where samples are the outermost axis these are the same.
        """
        n = self.noise
        if before == 1 and not mark:
            return found
        sample = torch.arange(n.width, device=found.device).view(1, 1, -1, 1)
        real = n.real.view(-1, 1, 1, 1)
        if before > 1:
            outer = torch.arange(before, device=found.device).view(1, -1, 1, 1)
            inner = torch.arange(after, device=found.device).view(1, 1, 1, -1)
            index = (outer * real + torch.minimum(sample, real - 1).clamp(min=0)) * after + inner
            found = found.gather(1, index.flatten(1))
        if mark:
            found = torch.where((sample < real).expand(-1, before, -1, after).flatten(1), found, -1)
        return found


def join_words(pairs: Tensor) -> Tensor:
    """Return integers of 63 bits from pairs of words, ``[..., 2]``."""
    return (pairs[..., 0] << 31) | (pairs[..., 1] >> 1)
