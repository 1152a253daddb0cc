"""The buffers into which hand-written kernels write gradients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class GradientBuffers(NamedTuple):
    """Buffers for gradients ``[C, P]`` and losses ``[C]``.

    ``coarse`` holds gradients in the type of products, ``fine`` those of the parameters from an offset on, in full
    precision; where both types are the same, ``fine`` is a view of ``coarse``. Numbers behind the last parameter, which
    align rows, are zero and stay so.
    """

    coarse: Tensor
    fine: Tensor
    loss: Tensor
