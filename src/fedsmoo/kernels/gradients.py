"""Where hand-written gradient kernels write."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class GradientBuffers(NamedTuple):
    """Room for gradients ``[C, P]`` and losses ``[C]``.

    ``coarse`` holds gradients in the type of products, ``fine`` those of the few parameters that are kept in full (from
    an offset on); ``fine`` is a part of ``coarse`` where both types are the same. Numbers behind the last parameter,
    which align rows, are zero and stay so.
    """

    coarse: Tensor
    fine: Tensor
    loss: Tensor
