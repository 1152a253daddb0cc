"""Which kernels convolve: boxes of pixels where the device and the shape have them, else gathered tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsmoo.kernels.conv.boxes import Box, box_of, data_by_boxes, forward_by_boxes, weight_by_boxes
from fedsmoo.kernels.conv.conv import PIXELS, Convolution
from fedsmoo.kernels.conv.geometry import Geometry, Pair
from fedsmoo.kernels.conv.tiles import FILLED, Tile, box_tile, parts_for, takes_two_warps, weight_tile
from fedsmoo.kernels.runtime import interpreted

POINTS = Geometry((1, 1))  # a product of pixels


def in_rows(g: Geometry, x: Tensor) -> bool:
    """Whether every pixel is by itself, so that those of all images can be one row, which boxes fill."""
    return g == POINTS and x.shape[3] < x.shape[1:4].numel()


def row_of(x: Tensor) -> Tensor:
    """``[C, B, H, W, channels] -> [C, 1, 1, B * H * W, channels]``."""
    return x.reshape(len(x), 1, 1, -1, x.shape[-1])


def boxes_serve(g: Geometry, precision: str, *tensors: Tensor) -> bool:
    """Whether boxes can serve these tensors, where they lie."""
    return shapes_serve(g, precision, *tensors) and all(t.data_ptr() % 16 == 0 for t in tensors)


def shapes_serve(g: Geometry, precision: str, *tensors: Tensor) -> bool:
    """Whether boxes can serve: stride 1, a device with a tensor memory unit, channels in pieces of 16 bytes.

    Images of more pixels than 32 bits count are left to :class:`Convolution`, which refuses them.
    """
    if g.stride != (1, 1) or precision == "tf32x3":
        return False
    if not interpreted() and torch.cuda.get_device_capability(tensors[0].device)[0] < 9:
        return False
    return all(t.shape[-1] * t.itemsize % 16 == 0 and t.shape[1:4].numel() <= PIXELS for t in tensors)


def box_for(tile: Tile, pixels: int, batch: int, size: Pair, inner: int) -> Box | None:
    """Return the box of so many pixels; ``None`` where too few of them would be some, or there are none."""
    if not batch:
        return None
    box = Box(*box_of(pixels, size), tile.cols, inner, tile.warps, tile.stages)
    filled = batch * size[0] * size[1] / (box.count(batch, size) * box.pixels)
    return box if filled >= FILLED else None


def forward(
    g: Geometry, x: Tensor, w: Tensor, precision: str, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """Return outputs ``[C, B, Ho, Wo, O]`` of images ``[C, B, H, W, I]`` and weights ``[C, kh, kw, I, O]``."""
    if in_rows(g, x):
        return forward(g, row_of(x), w, precision, bias, relu).view(*x.shape[:4], w.shape[-1])
    size, batch = g.outputs((x.shape[2], x.shape[3])), x.shape[1]
    if boxes_serve(g, precision, x, w):
        tile = box_tile(batch * size[0] * size[1], w.shape[-1], x.shape[-1], x.dtype, g.taps)
        box = box_for(tile, tile.rows, batch, size, tile.inner)
        if box is not None:
            return forward_by_boxes(g, x, w, box, precision, bias, relu)
    return Convolution(g, precision).forward(x, w, None, bias, relu)


def data(g: Geometry, dy: Tensor, w: Tensor, size: Pair, precision: str) -> Tensor:
    """Return the gradient by images of a size from that by the outputs."""
    batch, inside = dy.shape[1], w.shape[-2]
    if in_rows(g, dy):
        row = row_of(dy)
        return data(g, row, w, (row.shape[2], row.shape[3]), precision).view(*dy.shape[:4], inside)
    if boxes_serve(g, precision, dy, w) and inside * dy.itemsize % 16 == 0:
        tile = box_tile(batch * size[0] * size[1], inside, dy.shape[-1], dy.dtype, g.taps, back=True)
        box = box_for(tile, tile.rows, batch, size, tile.inner)
        if box is not None:
            return data_by_boxes(g, dy, w, size, box, precision)
    return Convolution(g, precision).data(dy, w, size)


def weight_box(g: Geometry, x: Tensor, dy: Tensor) -> Box | None:
    """Return the box of a weight gradient; ``None`` where too few of its pixels would be some, or maps are small.

    Boxes of several samples took 1.4 times as long as gathered tiles (maps of 4x4, 512 channels). Of float32, boxes are
    faster from 256 inputs on only: below, gathered tiles of two warps take as little as a quarter of the time.
    """
    if takes_two_warps(x.dtype, x.shape[-1], dy.shape[-1]) and x.shape[-1] < 256:
        return None
    tile = weight_tile(x.shape[-1], dy.shape[-1], x.dtype, False, boxes=True)
    if dy.shape[2] * dy.shape[3] < tile.inner:
        return None
    return box_for(tile, tile.inner, x.shape[1], (dy.shape[2], dy.shape[3]), tile.rows)


def parts_of(g: Geometry, x: Tensor, dy: Tensor, precision: str) -> int:
    """Return in how many parts the reduction of a weight gradient is cut: from shapes alone."""
    if in_rows(g, x):
        return parts_of(g, row_of(x), row_of(dy), precision)
    box = weight_box(g, x, dy) if shapes_serve(g, precision, x, dy) else None
    if box is None:
        convolution = Convolution(g, precision)
        tile = weight_tile(x.shape[-1], dy.shape[-1], x.dtype, convolution.exact)
        return convolution.parts_of(x, dy, tile)
    programs = g.taps * -(-x.shape[-1] // box.inner) * -(-dy.shape[-1] // box.cols)
    return parts_for(x.shape[0], programs, box.count(x.shape[1], (dy.shape[2], dy.shape[3])))


def weight_parts(g: Geometry, x: Tensor, dy: Tensor, precision: str, parts: int) -> Tensor:
    """Return the gradient by the weights as parts to be summed, ``[parts, C, kh, kw, I, O]`` in float32."""
    if in_rows(g, x):
        return weight_parts(g, row_of(x), row_of(dy), precision, parts)
    box = weight_box(g, x, dy) if boxes_serve(g, precision, x, dy) else None
    if box is None:
        return Convolution(g, precision).weight_parts(x, dy, parts=parts)
    return weight_by_boxes(g, x, dy, box, lambda *_: parts, precision)


def weight(g: Geometry, x: Tensor, dy: Tensor, precision: str) -> Tensor:
    """Return the gradient by the weights in float32, from images and the gradient by the outputs."""
    found = weight_parts(g, x, dy, precision, parts_of(g, x, dy, precision))
    return found[0] if len(found) == 1 else found.sum(0)
