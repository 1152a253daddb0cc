"""Fewer numbers on the way up, an option of any method: top-k (Stich et al., NeurIPS 2018), random-k, QSGD (Alistarh et
al., NeurIPS 2017) and scaled signs (Karimireddy et al., ICML 2019), with error feedback."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.algorithms.around import Around
from fedsmoo.algorithms.feedback import Feedback
from fedsmoo.core import Round, norm, option
from fedsmoo.core.share import count_of_share

Message = dict[str, np.ndarray]


@dataclass(frozen=True)
class Compressed(Feedback):
    """Any method, whose clients send a few bytes for each vector; what comes down is whole.

    ``feedback`` keeps what was left out for the next message. :meth:`message` is what would travel of one client's
    vector: its bytes are what the ledger counts, and from it the server has what :meth:`coded` gives.
    """

    feedback: bool = option(True, "add what a message leaves out to the next one")

    @property
    def kept(self) -> tuple[str, ...]:
        return self.vectors if self.feedback else ()

    @abstractmethod
    def message(self, v: Tensor, name: str, rnd: Round) -> Message:
        """Return the arrays that travel for one client's vector ``[P]``."""

    @abstractmethod
    def received(self, message: Message, name: str, like: Tensor, rnd: Round) -> Tensor:
        """Return the coded vector from what travelled."""

    def bytes_up(self, name: str, numbers: int, width: int) -> int:
        return width if name in self.scalars else self.size(numbers, width)

    @abstractmethod
    def size(self, numbers: int, width: int) -> int:
        """Return the bytes of a message for so many numbers."""

    @property
    def label(self) -> str:
        return f"{self.inner.label}+{type(self).__name__.lower()}"


@dataclass(frozen=True)
class TopK(Compressed):
    """The numbers of largest magnitude.

    client   C(u) = u where |u| is among the k largest, else 0        k = ceil(ratio P); sends k values and places
    """

    ratio: float = option(0.01, "share of the numbers that is sent", within="(0, 1]", counts=True)

    def coded(self, v: Tensor, name: str, rnd: Round) -> Tensor:
        return only(v, v.abs().topk(count(self.ratio, v.shape[-1]), -1).indices)

    def message(self, v: Tensor, name: str, rnd: Round) -> Message:
        places = v.abs().topk(count(self.ratio, len(v))).indices
        return {"values": v[places].numpy(), "places": places.numpy().astype(np.uint32)}

    def received(self, message: Message, name: str, like: Tensor, rnd: Round) -> Tensor:
        places = torch.from_numpy(message["places"].astype(np.int64))
        return torch.zeros_like(like).scatter(-1, places, torch.from_numpy(message["values"]))

    def size(self, numbers: int, width: int) -> int:
        return count(self.ratio, numbers) * (width + 4)


@dataclass(frozen=True)
class RandomK(Compressed):
    """Numbers at places that are drawn anew for every message: the server draws the same, so only values travel.

    client   C(u) = u at k places drawn at random, else 0             without feedback times P / k: then E C(u) = u
    """

    ratio: float = option(0.01, "share of the numbers that is sent", within="(0, 1]", counts=True)

    def places(self, like: Tensor, name: str, rnd: Round) -> Tensor:
        """Return the places of a message, which are where the smallest of P uniform numbers lie."""
        k = count(self.ratio, like.shape[-1])
        return rnd.uniform(f"places of {name}", like).topk(k, -1, largest=False).indices

    def scale(self, numbers: int) -> float:
        """Return what values are multiplied by."""
        return 1.0 if self.feedback else numbers / count(self.ratio, numbers)

    def coded(self, v: Tensor, name: str, rnd: Round) -> Tensor:
        return only(self.scale(v.shape[-1]) * v, self.places(v, name, rnd))

    def message(self, v: Tensor, name: str, rnd: Round) -> Message:
        return {"values": (self.scale(len(v)) * v)[self.places(v, name, rnd)].numpy()}

    def received(self, message: Message, name: str, like: Tensor, rnd: Round) -> Tensor:
        values = torch.from_numpy(message["values"])
        return torch.zeros_like(like).scatter(-1, self.places(like, name, rnd), values)

    def size(self, numbers: int, width: int) -> int:
        return count(self.ratio, numbers) * width


@dataclass(frozen=True)
class QSGD(Compressed):
    """Numbers rounded at random to a few levels of the norm of their bucket, so that E C(u) = u.

    client   C(u) = ||u|| sign(u) l / s,   l = floor(s |u| / ||u|| + uniform(0, 1)),   in each bucket of 512 numbers

    With feedback C(u) / (1 + min(512 / s^2, sqrt(512) / s)) is sent, which never is further from u than 0 is: feedback
    of what is not would grow without bound.
    """

    feedback: bool = option(False, "add what a message leaves out to the next one")
    levels: int = option(
        16, "levels of a number between 0 and the norm of its bucket (s)", within="[1, 127]", counts=True
    )

    bucket: ClassVar[int] = 512

    @property
    def shrink(self) -> float:
        """The factor that makes a contraction of an unbiased code."""
        d, s = self.bucket, self.levels
        return 1 / (1 + min(d / s**2, math.sqrt(d) / s)) if self.feedback else 1.0

    def codes(self, v: Tensor, name: str, rnd: Round) -> tuple[Tensor, Tensor]:
        """Return whole numbers from -s to s in buckets, and the norm of each bucket."""
        blocks, drawn = buckets(v, self.bucket), buckets(rnd.uniform(f"levels of {name}", v), self.bucket)
        size = norm(blocks)
        level = (self.levels * blocks.abs() / torch.where(size > 0, size, 1.0) + drawn).floor().clamp(max=self.levels)
        return blocks.sign() * level, size

    def values(self, codes: Tensor, size: Tensor, numbers: int) -> Tensor:
        """Return the vector that codes and norms stand for."""
        return (codes * (self.shrink * size / self.levels)).flatten(-2)[..., :numbers]

    def coded(self, v: Tensor, name: str, rnd: Round) -> Tensor:
        return self.values(*self.codes(v, name, rnd), v.shape[-1])

    def message(self, v: Tensor, name: str, rnd: Round) -> Message:
        codes, size = self.codes(v, name, rnd)
        whole = codes.flatten()[: len(v)].long().numpy() + self.levels
        bits = (whole[:, None] >> np.arange(bits_of(self.levels))) & 1
        return {"codes": np.packbits(bits.astype(np.uint8)), "norms": size.flatten().numpy()}

    def received(self, message: Message, name: str, like: Tensor, rnd: Round) -> Tensor:
        width = bits_of(self.levels)
        bits = np.unpackbits(message["codes"], count=len(like) * width).reshape(-1, width)
        codes = torch.from_numpy((bits.astype(np.int64) << np.arange(width)).sum(1) - self.levels).to(like.dtype)
        return self.values(buckets(codes, self.bucket), torch.from_numpy(message["norms"])[:, None], len(like))

    def size(self, numbers: int, width: int) -> int:
        return -(-numbers * bits_of(self.levels) // 8) + width * -(-numbers // self.bucket)


@dataclass(frozen=True)
class Sign(Compressed):
    """The sign of every number, times their mean magnitude.

    client   C(u) = sign(u) ||u||_1 / P                               sends a bit for every number, and one number
    """

    def coded(self, v: Tensor, name: str, rnd: Round) -> Tensor:
        return torch.where(v >= 0, 1.0, -1.0).to(v.dtype) * v.abs().mean(-1, keepdim=True)

    def message(self, v: Tensor, name: str, rnd: Round) -> Message:
        return {"signs": np.packbits((v >= 0).numpy()), "scale": v.abs().mean(-1, keepdim=True).numpy()}

    def received(self, message: Message, name: str, like: Tensor, rnd: Round) -> Tensor:
        signs = torch.from_numpy(np.unpackbits(message["signs"], count=len(like)).astype(bool))
        return torch.where(signs, 1.0, -1.0).to(like.dtype) * torch.from_numpy(message["scale"])

    def size(self, numbers: int, width: int) -> int:
        return -(-numbers // 8) + width


def count(ratio: float, numbers: int) -> int:
    """Return how many numbers a share of them is, at least one."""
    return max(1, count_of_share(numbers, ratio, math.ceil))


def only(v: Tensor, places: Tensor) -> Tensor:
    """Return a vector with zeros at all but some places."""
    return torch.zeros_like(v).scatter(-1, places, v.gather(-1, places))


def buckets(v: Tensor, size: int) -> Tensor:
    """Return a vector in rows of a size, the last one filled up with zeros: ``[.., P] -> [.., P / size, size]``."""
    rows: Tensor = F.pad(v, (0, -v.shape[-1] % size)).unflatten(-1, (-1, size))
    return rows


def bits_of(levels: int) -> int:
    """Return the bits of a whole number from -levels to levels."""
    return math.ceil(math.log2(2 * levels + 1))


# The name of the setting compression -> what is put around the method; off is the method itself.
COMPRESSIONS: dict[str, type[Around]] = {"topk": TopK, "randomk": RandomK, "qsgd": QSGD, "sign": Sign}
