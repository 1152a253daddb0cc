"""Products of convolutions whose tiles are boxes, which the tensor memory unit of Hopper brings.

A tile of whole samples is a box of an image, shifted by a tap; outside of the image the unit gives zeros, which is all
that padding needs. One instruction brings a tile, where loads by pointers compute an address for every 16 bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fedsmoo.kernels.awaited import box_dot
from fedsmoo.kernels.resnet18.shapes import Conv
from fedsmoo.kernels.runtime import interpreted

SHARED = 220 * 1024  # bytes of shared memory that the largest tiles by boxes may use


def boxes_serve(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the device brings boxes, has room for the tiles, and its products read such numbers from there."""
    if dtype != torch.bfloat16 or device.type != "cuda" or interpreted():
        return False
    found = torch.cuda.get_device_properties(device)
    return found.major >= 9 and getattr(found, "shared_memory_per_block_optin", 0) >= SHARED


def image_boxes(x: Tensor, pixels: int, channels: int) -> TensorDescriptor:
    """Describe boxes of so many pixels of whole samples, and so many channels, of images ``[C, B, H, H, channels]``."""
    side = x.shape[2]
    return TensorDescriptor.from_tensor(x, [1, pixels // side**2, side, side, channels])


def row_pairs(x: Tensor, pixels: int, channels: int) -> TensorDescriptor:
    """Describe boxes of every other pixel of images ``[C, B, H, H, channels]``, as a stride of 2 meets them.

    An image is pairs of rows, one of them, and pairs of pixels: a box lies in one row of the pair and, as it has some
    channels only, in one pixel of the pair. Behind the last sample of a client comes the next client's first.
    """
    clients, batch, side, _, inside = x.shape
    half = side // 2
    shape = [clients * batch, half, 2, half, 2 * inside]
    return TensorDescriptor.from_tensor(x.view(shape), [pixels // half**2, half, 1, half, channels])


def weight_boxes(w: Tensor, offset: int, conv: Conv, rows: int, cols: int) -> TensorDescriptor:
    """Describe boxes of the kernel ``[taps * taps * Cin, Cout]`` that begins at ``offset`` of vectors ``w [C, P]``."""
    reduced = conv.taps**2 * conv.inside
    kernel = w[:, offset : offset + reduced * conv.outside].unflatten(1, (reduced, conv.outside))
    return TensorDescriptor.from_tensor(kernel, [1, rows, cols])


def pixel_rows(dy: Tensor, pixels: int, channels: int) -> TensorDescriptor:
    """Describe boxes of so many pixels in a row, and so many channels, of images ``[C, B, H, H, channels]``."""
    return TensorDescriptor.from_tensor(dy.flatten(1, 3), [1, pixels, channels])


@triton.jit
def forward_products(
    acc,  # [BM, BN], or [BN, BM] if TURNED: a tile of outputs, in registers
    x, w,  # boxes of images, of row pairs if STRIDE is 2, and [1, BK, BN] of kernels
    client, sample, col,  # which client; the tile's first sample and output channel
    B, CIN: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus the convolution of ``x``: products over taps and input channels.

    Tiles may end in samples that there are not: what they give is not written.
    """
    for step in range(TAPS * TAPS * (CIN // BK)):
        tap = step // (CIN // BK)
        k = step % (CIN // BK) * BK
        if STRIDE == 2:
            h, v = tap // TAPS - PAD + 2, tap % TAPS - PAD + 2
            a = x.load([client * B + sample, h // 2 - 1, h % 2, v // 2 - 1, v % 2 * CIN + k])
        else:
            a = x.load([client, sample, tap // TAPS - PAD, tap % TAPS - PAD, k])
        b = w.load([client, step * BK, col])
        acc = box_dot(tl.reshape(a, (BM, BK)), tl.reshape(b, (BK, BN)), acc, step, TURNED, PRECISION)
    return tl.trans(acc) if TURNED else acc


@triton.jit
def backward_products(
    acc,  # [BM, BN], or [BN, BM] if TURNED: a tile of input gradients, in registers
    dy, w,  # boxes [1, samples, HO, HO, BK] of gradients and [1, BN, BK] of kernels
    client, sample, col,  # which client; the tile's first sample and input channel
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus the transposed convolution of ``dy``: products over taps and output channels."""
    for step in range(TAPS * TAPS * (COUT // BK)):
        tap = step // (COUT // BK)
        k = step % (COUT // BK) * BK
        a = dy.load([client, sample, PAD - tap // TAPS, PAD - tap % TAPS, k])
        b = w.load([client, tap * CIN + col, k])
        acc = box_dot(tl.reshape(a, (BM, BK)), tl.trans(tl.reshape(b, (BN, BK))), acc, step, TURNED, PRECISION)
    return tl.trans(acc) if TURNED else acc


@triton.jit
def weight_products(
    acc,  # [BM, BN], or [BN, BM] if TURNED: a tile of one tap's weights, in registers
    x, dy,  # boxes [1, samples, HO, HO, BM] of images and [1, BK, BN] of rows of gradients
    client, first, blocks, shift_h, shift_v,  # which client; the first of so many boxes; their shift by the tap
    channel, col,  # the tile's first input and output channel
    HO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TURNED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus products over some boxes of pixels; beyond the last sample they are zero."""
    for block in range(blocks):
        pixel = (first + block) * BK
        a = tl.reshape(x.load([client, pixel // (HO * HO), shift_h, shift_v, channel]), (BK, BM))
        b = tl.reshape(dy.load([client, pixel, col]), (BK, BN))
        acc = box_dot(tl.trans(a), b, acc, block, TURNED, PRECISION)
    return tl.trans(acc) if TURNED else acc
