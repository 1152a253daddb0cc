"""Matrix products of boxes inside a loop: one that has ended before the loop goes on, and one that need not."""

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


@triton.jit
def box_dot(a, b, acc, step, TURNED: tl.constexpr, PRECISION: tl.constexpr):
    """Return ``acc + a @ b``, or if ``TURNED`` ``acc + b' @ a'``, in a step of a loop.

    The left operand of a product comes to the tensor cores in registers if it is a reshaped box of an image, and then
    has to be waited for. Turned, it is ``b``, which only loses a leading one and stays in shared memory, as ``a`` does
    on the right: nothing is loaded into registers, and the product goes on beside the next step's loads.
    """
    if TURNED:
        acc = tl.dot(tl.trans(b), tl.trans(a), acc, input_precision=PRECISION)
    else:
        acc = awaited_dot(a, b, acc, step, PRECISION)
    return acc
