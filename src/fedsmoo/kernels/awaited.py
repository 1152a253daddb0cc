"""A matrix product inside a loop that has ended before the loop goes on."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def awaited_dot(a, b, acc, step, PRECISION: tl.constexpr):
    """Return ``acc + a @ b``, in step ``step`` (0 or more) of a loop, once the product has read all of ``a``.

    For an ``a`` that is a reshaped box. Hopper's tensor cores multiply while the program goes on, and Triton (3.6) does
    not wait for them at the loop's end. That is sound where they read ``a`` from shared memory. A reshaped box comes
    to them in registers, and there the next step would load its own ``a`` over the one that is still being read. A use
    of the sum inside the loop makes Triton wait; this one changes no number and no instruction is left of it.
    """
    acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return tl.where(step >= 0, acc, 0.0)
