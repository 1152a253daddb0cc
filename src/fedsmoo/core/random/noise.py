"""Noise by counting: Philox-4x32-10, a pure function from a key and a counter to random words.

Words are named by ``(key, name, step, index)``: the key stands for a seed, a round and a client, the name for what the
noise is for. Nothing is kept from one draw to the next, so nothing has to be saved, and the same name gives the same
numbers on every device: words and uniforms exactly, normals because they are computed in float64 and then rounded.

Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
import sys
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 15  # counters at a time: their lanes stay in a processor's cache
MASK = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
SCHEDULE = [np.arange(10, dtype=np.uint64)[:, None, None] * np.uint64(m) for m in INCREMENTS]  # of keys, by round
HIGH = 1 if sys.byteorder == "little" else 0  # which half of 64 bits is the high one


def crc(name: str) -> int:
    """Return the word of 32 bits that stands for a name."""
    return zlib.crc32(name.encode())


def key_of(seed: int, purpose: str, *where: int) -> tuple[int, int]:
    """Return the two words of 32 bits that stand for a seed, a purpose, and a round and client.

    >>> key_of(0, "layers", 3, 17) == key_of(0, "layers", 3, 17) != key_of(0, "layers", 17, 3)
    True
    """
    low, high = np.random.SeedSequence([seed, crc(purpose), *where]).generate_state(2)
    return int(low), int(high)


def philox(
    key: tuple[int | Tensor, int | Tensor], counter: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Four random words for every counter of four words. Words are held in int64, which every device can multiply.

    The words of the key may be tensors that broadcast to the counters' shape.
    """
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # modulo 2^64; the shift repeats the sign, which & removes
        c0, c1 = ((p1 >> 32) & MASK).bitwise_xor_(c1).bitwise_xor_(k0), p1.bitwise_and_(MASK)
        c2, c3 = ((p0 >> 32) & MASK).bitwise_xor_(c3).bitwise_xor_(k1), p0.bitwise_and_(MASK)
        k0, k1 = (k0 + INCREMENTS[0]) & MASK, (k1 + INCREMENTS[1]) & MASK
    return c0, c1, c2, c3


def words_on_host(key: tuple[Any, Any], index: np.ndarray, name: int, step: Any) -> np.ndarray:
    """Return :func:`philox` of the counters ``index [R, N]`` on a CPU, whose four words each are side by side: uint32.

    Words of the key and steps may be arrays ``[R, 1]``. NumPy has unsigned numbers, and takes a sixth of the time.
    """
    a, b = np.empty((2, *index.shape), np.uint32), np.empty((2, *index.shape), np.uint32)
    a[0], a[1], b[0], b[1] = index & MASK, name, index >> 32, step & MASK
    keys = np.empty((10, 2, len(index), 1), np.uint32)
    keys[:, 0], keys[:, 1] = ((np.asarray(k, np.uint64) + more) & MASK for k, more in zip(key, SCHEDULE, strict=True))
    factors, product, spare = (np.empty(a.shape, np.uint64) for _ in range(3))
    factors[0], factors[1] = MULTIPLIERS
    for k in keys:
        product[:] = a
        product *= factors
        halves = product.view(np.uint32)
        np.bitwise_xor(np.bitwise_xor(halves[::-1, :, HIGH::2], b, out=a), k, out=a)
        b, product, spare = halves[::-1, :, 1 - HIGH :: 2], spare, product
    out = np.empty((*index.shape, 4), np.uint32)
    out[..., 0], out[..., 1], out[..., 2], out[..., 3] = a[0], b[0], a[1], b[1]
    return out.reshape(len(index), 4 * index.shape[1])


def below_on_host(words: np.ndarray, bound: float) -> np.ndarray:
    """Return ``uniform(words) < bound``, compared in float32, from words on a CPU: bool.

    A uniform number is (2 m + 1) / 2^24 with m the word without its last 9 bits, so this is a bound of words.
    """
    least = math.ceil((float(np.float32(bound)) * 2.0**24 - 1) / 2)  # the first m that is not below
    if least << 9 > MASK:
        return np.ones(words.shape, bool)
    return words < np.uint32(max(least, 0) << 9)


@dataclass(frozen=True)
class Noise:
    """Where a client draws in one local step: its key, which names the seed, the round and the client, and the step."""

    key: tuple[int, int]
    step: int = 0

    def words(self, name: str, count: int, device: torch.device | str = "cpu", start: int = 0) -> Tensor:
        """``count`` words of the stream ``name``, from its counter ``start`` on, of which each gives four: int64."""
        if torch.device(device).type == "cpu":
            return torch.from_numpy(self.on_host(name, count, start).astype(np.int64))
        counters, parts = -(-count // 4), []
        for first in range(start, start + counters, BLOCK):
            index = torch.arange(first, min(first + BLOCK, start + counters), device=device)
            place = torch.full_like(index, crc(name)), torch.full_like(index, self.step & MASK)
            parts.append(torch.stack(philox(self.key, (index & MASK, index >> 32, *place)), -1).flatten())
        return torch.cat(parts)[:count] if parts else torch.empty(0, dtype=torch.int64, device=device)

    def on_host(self, name: str, count: int, start: int = 0) -> np.ndarray:
        """Return :meth:`words` on a CPU as an array: uint32."""
        end, parts = start + -(-count // 4), [np.empty(0, np.uint32)]
        for first in range(start, end, BLOCK):
            index = np.arange(first, min(first + BLOCK, end))[None]
            parts.append(words_on_host(self.key, index, crc(name), self.step)[0])
        return (np.concatenate(parts) if len(parts) > 2 else parts[-1])[:count]

    def uniform(self, name: str, like: Tensor) -> Tensor:
        """Return numbers in (0, 1), shaped as ``like`` and in its type."""
        return uniform(self.words(name, like.numel(), like.device)).view(like.shape).to(like.dtype)

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Return standard normal numbers, shaped as ``like`` and in its type."""
        return normal(self.words(name, even(like.numel()), like.device))[: like.numel()].view(like.shape).to(like.dtype)


def even(count: int) -> int:
    """Return how many words ``count`` normals take, which are made two by two."""
    return count + count % 2


def uniform(words: Tensor) -> Tensor:
    """Return the middles of 2^23 equal parts of (0, 1), which float32 holds exactly."""
    return ((words >> 9) * 2 + 1).float() * 2.0**-24


def normal(words: Tensor) -> Tensor:
    """Return as many standard normals in float32 as there are words (an even number), by Box-Muller in float64."""
    radius, angle = words.view(-1, 2).double().unbind(1)
    radius = ((radius + 0.5) * 2.0**-32).log_().mul_(-2).sqrt_()
    angle = angle * (2 * math.pi * 2.0**-32)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten().float()
