"""Fewer bits on the wire, an option of any method: half precision or 8-bit integers both ways, with error
feedback (Seide et al., Interspeech 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.algorithms.feedback import Feedback
from fedsmoo.core import Round, Vectors, derived, option

KINDS = ("fp16", "int8")
BLOCK = 256  # numbers that share one scale
TINY = 1e-30  # a block of nothing larger than this is sent as zeros
HALF_MAX = 65504.0


def int8_codes(v: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and a bfloat16 scale per block of 256 along the last axis.

    The scale has eight significant bits and a code seven, so their product is exact in float32, and encoding a decoded
    vector gives the same codes: what a simulation rounds is, to the bit, what a real wire carries.
    """
    blocks = F.pad(v, (0, -v.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).to(torch.bfloat16)
    wide = scale.to(v.dtype)
    codes = (blocks / torch.where(wide > TINY, wide, torch.inf)).round().clamp(-127, 127)
    return codes.flatten(-2)[..., : v.shape[-1]], torch.where(wide.abs() <= TINY, 0, scale)[..., 0]


def int8_values(codes: Tensor, scale: Tensor) -> Tensor:
    """Return the vector that codes and scales stand for, in the codes' floating-point type."""
    return codes * scale.to(codes.dtype).repeat_interleave(BLOCK, -1)[..., : codes.shape[-1]]


def rounded(v: Tensor, kind: str) -> Tensor:
    """Return ``v`` as it arrives at the other end of the wire.

    >>> rounded(torch.tensor([1.0, 0.3, 1e-5]), "int8")
    tensor([0.9999, 0.2992, 0.0000])
    """
    if kind == "fp16":
        return v.clamp(-HALF_MAX, HALF_MAX).to(torch.float16).to(v.dtype)
    return int8_values(*int8_codes(v))


def wire_bytes(size: int, kind: str) -> int:
    """Return the bytes of one vector on the wire."""
    return 2 * size if kind == "fp16" else size + 2 * -(-size // BLOCK)


@dataclass(frozen=True)
class Quantised(Feedback):
    """Any method, with every vector that travels rounded to half precision or to 8 bits; single numbers are sent whole.

    server   sends v' = Q(v + e);   e <- v + e - v'            v: each vector of down; e stays on the server
    client   sends Q(v_i - v' + e_i);   e_i <- what Q took     where v was received too (w), else Q(v_i + e_i)
    server   goes on as the method does, with v + mean of what was sent
    """

    kind: str = option("fp16", "the numbers on the wire", KINDS, positional=True)

    server = derived(lambda self: (*self.inner.server, *(f"err_{n}" for n in self.rounded_down)))

    @property
    def rounded_down(self) -> tuple[str, ...]:
        """The vectors of down, without the single numbers."""
        return tuple(n for n in self.down if n not in self.scalars)

    def coded(self, v: Tensor, name: str, rnd: Round) -> Tensor:
        return rounded(v, self.kind)

    def init(self, w: Tensor) -> Vectors:
        return self.inner.init(w).replace(**{f"err_{n}": torch.zeros_like(w) for n in self.rounded_down})

    def sent(self, srv: Vectors) -> Vectors:
        whole = self.inner.sent(srv)
        vectors = [(n, getattr(whole, n) + getattr(srv, f"err_{n}")) for n in self.rounded_down]
        return whole.replace(**{n: rounded(v, self.kind) for n, v in vectors})

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        whole, sent = self.inner.sent(srv), self.sent(srv).pick(self.rounded_down)
        errors = {f"err_{n}": getattr(whole, n) + getattr(srv, f"err_{n}") - v for n, v in sent.items()}
        return super().aggregate(srv, mean, rnd).replace(**errors)

    def bytes_of(self, name: str, numbers: int, width: int) -> int:
        return width if name in self.scalars else wire_bytes(numbers, self.kind)

    def bytes_up(self, name: str, numbers: int, width: int) -> int:
        return self.bytes_of(name, numbers, width)

    @property
    def label(self) -> str:
        return f"{self.inner.label}+{self.kind}"
