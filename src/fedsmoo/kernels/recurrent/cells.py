"""One step of recurrent cells inside a kernel, forward and backward: what follows the product with the state before.

``x``, ``gates`` and ``dgx`` point to the first gate's numbers of some samples and hidden units; those of the other
gates lie ``H`` further each. ``ok`` says which of them there are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def read(at, ok):
    """Return numbers in float32; zeros where there are none."""
    return tl.load(at, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def lstm(s0, s1, s2, s3, x, b, carry, c_now, gates, ok, H: tl.constexpr):
    """Return h from the products of an LSTM's gates; ``b`` points to their biases, ``carry`` is its c, in float32."""
    i = sigmoid(s0 + read(b, ok) + read(x, ok))
    f = sigmoid(s1 + read(b + H, ok) + read(x + H, ok))
    g = tanh(s2 + read(b + 2 * H, ok) + read(x + 2 * H, ok))
    o = sigmoid(s3 + read(b + 3 * H, ok) + read(x + 3 * H, ok))
    c = f * read(carry, ok) + i * g
    tl.store(carry, c, mask=ok)
    tl.store(c_now, c, mask=ok)
    tl.store(gates, i, mask=ok)
    tl.store(gates + H, f, mask=ok)
    tl.store(gates + 2 * H, g, mask=ok)
    tl.store(gates + 3 * H, o, mask=ok)
    return o * tanh(c)


@triton.jit
def gru(s0, s1, s2, x, b, h_before, n_now, gates, ok, H: tl.constexpr):
    """Return h from the products of a GRU's gates; ``b`` points to the biases that belong to them."""
    r = sigmoid(s0 + read(b, ok) + read(x, ok))
    z = sigmoid(s1 + read(b + H, ok) + read(x + H, ok))
    s2 += read(b + 2 * H, ok)
    n = tanh(read(x + 2 * H, ok) + r * s2)
    tl.store(n_now, s2, mask=ok)
    tl.store(gates, r, mask=ok)
    tl.store(gates + H, z, mask=ok)
    tl.store(gates + 2 * H, n, mask=ok)
    return n + z * (read(h_before, ok) - n)


@triton.jit
def lstm_backward(down, gates, c_now, c_before, carry, dgx, ok, H: tl.constexpr):
    """Write the gradients by the sums of an LSTM's gates, from that by h; ``carry`` is that by c."""
    i = read(gates, ok)
    f = read(gates + H, ok)
    g = read(gates + 2 * H, ok)
    o = read(gates + 3 * H, ok)
    th = tanh(read(c_now, ok))
    e = read(carry, ok) + down * o * (1.0 - th * th)
    tl.store(dgx, e * g * i * (1.0 - i), mask=ok)
    tl.store(dgx + H, e * read(c_before, ok) * f * (1.0 - f), mask=ok)
    tl.store(dgx + 2 * H, e * i * (1.0 - g * g), mask=ok)
    tl.store(dgx + 3 * H, down * th * o * (1.0 - o), mask=ok)
    tl.store(carry, e * f, mask=ok)


@triton.jit
def gru_backward(down, gates, n_now, h_before, carry, dgx, dgh, ok, H: tl.constexpr):
    """Write the gradients by the sums of a GRU's gates, from that by h; ``carry`` is its part past the gates."""
    r = read(gates, ok)
    z = read(gates + H, ok)
    n = read(gates + 2 * H, ok)
    down += read(carry, ok)
    dn = down * (1.0 - z) * (1.0 - n * n)
    dz = down * (read(h_before, ok) - n) * z * (1.0 - z)
    dr = dn * read(n_now, ok) * r * (1.0 - r)
    tl.store(dgx, dr, mask=ok)
    tl.store(dgx + H, dz, mask=ok)
    tl.store(dgx + 2 * H, dn, mask=ok)
    tl.store(dgh, dr, mask=ok)
    tl.store(dgh + H, dz, mask=ok)
    tl.store(dgh + 2 * H, dn * r, mask=ok)
    tl.store(carry, down * z, mask=ok)
