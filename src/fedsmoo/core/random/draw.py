"""Noise of one client, or of C at once, as one operation: compilers would take minutes for its integer arithmetic.

Every client has a key of its own (:mod:`fedsmoo.core.random.noise`), so what a client draws depends neither on who else
is in the batch nor on the device. ``fedsmoo.kernels.noise`` computes the same numbers on a GPU in one pass.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.random.noise import BLOCK, MASK, below_on_host, crc, normal, philox, uniform, words_on_host

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": normal,
    "uniform": uniform,
    "below": uniform,
    "words": lambda words: words,
}


@torch.library.custom_op("fedsmoo::noise", mutates_args=())
def drawn(
    keys: Tensor, steps: Tensor, name: str, kind: str, like: Tensor, starts: Tensor | None = None, bound: float = 0.0
) -> Tensor:
    """Return noise ``[R, count]`` for keys ``[R, 2]`` and steps ``[R]``, both int64, in the type of ``like``.

    Noise "below" says, in bool, which uniform numbers are less than the ``bound``, in float32. ``starts [R]`` says
    from which counter on each row draws (default: from the first), of which each gives four.
    """
    rows, count = len(keys), like.shape[-1]
    out = torch.empty(rows, count, dtype=like.dtype, device=like.device)
    at_once = max(BLOCK // max(rows, 1), 1)
    k0, k1 = keys[:, :1], keys[:, 1:]
    for first in range(0, -(-count // 4), at_once):
        index = torch.arange(first, min(first + at_once, -(-count // 4)), device=like.device).expand(rows, -1)
        index = index if starts is None else index + starts[:, None]
        part = out[:, 4 * first : 4 * (first + at_once)]
        if like.device.type == "cpu":
            found = words_on_host((k0.numpy(), k1.numpy()), index.numpy(), crc(name), steps[:, None].numpy())
            if kind == "below":
                part.copy_(torch.from_numpy(below_on_host(found[:, : part.shape[1]], bound)))
                continue
            words = torch.from_numpy(found.astype(np.int64))
        else:
            place = torch.full_like(index, crc(name)), steps[:, None].expand_as(index)
            words = torch.stack(philox((k0, k1), (index & MASK, index >> 32, *place)), -1).flatten(1)
        numbers = KINDS[kind](words.flatten()).view(words.shape)[:, : part.shape[1]]
        part.copy_(numbers < bound if kind == "below" else numbers)
    return out


@drawn.register_fake
def _(
    keys: Tensor, steps: Tensor, name: str, kind: str, like: Tensor, starts: Tensor | None = None, bound: float = 0.0
) -> Tensor:
    return like.new_empty(keys.shape[0], like.shape[-1])


def draw(kind: str, key: Tensor, name: str, step: Tensor | None, like: Tensor) -> Tensor:
    """Return the noise ``name`` in the shape and type of ``like``: one stream for a key ``[2]``, of C keys one a row.

    Of C clients a vector of all, ``like [P]``, stands for one of each: ``[C, P]``. ``step`` is a number per row or one
    for all; without it the noise is that of the round and of no step.
    """
    keys = key.reshape(-1, 2).to(like.device)
    flat = like.reshape(-1) if key.dim() == 1 else like[..., 0, :] if like.dim() > 1 else like
    steps = torch.full_like(keys[:, 0], MASK) if step is None else step.reshape(-1).to(keys).expand(len(keys))
    found: Tensor = drawn(keys, steps, name, kind, flat)
    return found.view(like.shape) if key.dim() == 1 else found
