"""Launch the three products of a convolution with a client axis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.conv.geometry import Geometry, Pair
from fedsmoo.kernels.conv.products import behind, data_kernel, forward_kernel, patches_kernel, weight_kernel
from fedsmoo.kernels.conv.tiles import Tile, parts_for, pixel_tile, weight_tile
from fedsmoo.kernels.runtime import launch

REACH = 2**31  # numbers of a client's images whose places 32 bits count
PIXELS = 2**31 - 2**18  # less what the last tiles of all parts have of pixels that there are not


def are_far(*images: Tensor) -> bool:
    """Return whether a client's part of any of these ``[C, B, H, W, channels]`` has more numbers than 32 bits count.

    Raises:
        FedsmooError: if it has as many pixels.
    """
    pixels = max(v.shape[1:4].numel() for v in images)
    if pixels > PIXELS:
        raise FedsmooError(
            f"a batch of {images[0].shape[1]:,} images of one client has {pixels:,} pixels, but the kernels of "
            f"convolutions count {PIXELS:,}: use a smaller batch_size"
        )
    return any(v.shape[1:].numel() > REACH for v in images)


@dataclass(frozen=True)
class Convolution:
    """A convolution of C clients at once, each with weights of its own.

    ``precision`` says how float32 numbers are multiplied: ``tf32``, ``tf32x3`` (float32's accuracy) or ``ieee``;
    numbers of bfloat16 are multiplied as they are. Tiles follow a rule where none is given.
    """

    geometry: Geometry
    precision: str = "ieee"

    @property
    def exact(self) -> bool:
        return self.precision == "tf32x3"

    def forward(
        self, x: Tensor, w: Tensor, tile: Tile | None = None, bias: Tensor | None = None, relu: bool = False
    ) -> Tensor:
        """Return outputs ``[C, B, Ho, Wo, O]`` of ``x [C, B, H, W, I]`` and ``w [C, kh, kw, I, O]``."""
        clients, batch, height, width, inside = x.shape
        high, wide = self.geometry.outputs((height, width))
        outside, pixels = w.shape[-1], batch * high * wide
        y = x.new_empty(clients, batch, high, wide, outside)
        if tile is None:
            tile = pixel_tile(clients, pixels, outside, inside, x.dtype, self.exact)
        launch(
            forward_kernel, (triton.cdiv(pixels, tile.rows) * triton.cdiv(outside, tile.cols), clients),
            x=x, x_row=x.stride(0), w=w, w_row=w.stride(0),
            **behind(bias, y), RELU=relu, y=y,
            B=batch, H=height, W=width, HO=high, WO=wide, CIN=inside, COUT=outside, **self.geometry.constants(),
            BM=tile.rows, BN=tile.cols, BK=tile.inner,
            EVEN_K=inside % tile.inner == 0, EVEN_N=outside % tile.cols == 0,
            PRECISION=self.precision, FAR=are_far(x, y), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return y

    def data(self, dy: Tensor, w: Tensor, size: Pair, tile: Tile | None = None) -> Tensor:
        """Return the gradient by the inputs ``[C, B, H, W, I]`` of a height and width, from that by the outputs."""
        clients, batch, high, wide, outside = dy.shape
        (height, width), inside, (sh, sw) = size, w.shape[-2], self.geometry.stride
        dx = dy.new_empty(clients, batch, height, width, inside)
        pixels = batch * triton.cdiv(height, sh) * triton.cdiv(width, sw)  # of a residue
        tile = tile or pixel_tile(clients, pixels, inside, outside, dy.dtype, self.exact, back=True)
        launch(
            data_kernel, (sh * sw * triton.cdiv(pixels, tile.rows) * triton.cdiv(inside, tile.cols), clients),
            dy=dy, dy_row=dy.stride(0), w=w, w_row=w.stride(0), dx=dx,
            B=batch, H=height, W=width, HO=high, WO=wide, CIN=inside, COUT=outside, **self.geometry.constants(),
            BM=tile.rows, BN=tile.cols, BK=tile.inner,
            EVEN=outside % tile.inner == 0 and inside % tile.cols == 0,
            PRECISION=self.precision, FAR=are_far(dy, dx), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return dx

    def weight(self, x: Tensor, dy: Tensor, tile: Tile | None = None, parts: int | None = None) -> Tensor:
        """Return the gradient by the weights ``[C, kh, kw, I, O]`` in float32, from inputs and outputs' gradient."""
        found = self.weight_parts(x, dy, tile, parts)
        return found[0] if len(found) == 1 else found.sum(0)

    def parts_of(self, x: Tensor, dy: Tensor, tile: Tile) -> int:
        """Return in how many parts the reduction of a weight gradient is cut."""
        programs = self.geometry.taps * triton.cdiv(x.shape[-1], tile.rows) * triton.cdiv(dy.shape[-1], tile.cols)
        return parts_for(x.shape[0], programs, triton.cdiv(dy.shape[1:4].numel(), tile.inner))

    def weight_parts(self, x: Tensor, dy: Tensor, tile: Tile | None = None, parts: int | None = None) -> Tensor:
        """Return :meth:`weight` as parts that are still to be summed, ``[parts, C, kh, kw, I, O]``."""
        (clients, batch, height, width, inside), (high, wide, outside) = x.shape, dy.shape[2:]
        tile = tile or weight_tile(inside, outside, x.dtype, self.exact)
        programs = self.geometry.taps * triton.cdiv(inside, tile.rows) * triton.cdiv(outside, tile.cols)
        parts = parts or self.parts_of(x, dy, tile)
        kind = torch.float32 if parts > 1 else x.dtype  # one part alone is rounded as PyTorch's own
        dw = x.new_empty(parts, clients, *self.geometry.kernel, inside, outside, dtype=kind)
        launch(
            weight_kernel, (programs * parts, clients),
            x=x, x_row=x.stride(0), dy=dy, dy_row=dy.stride(0), dw=dw, dw_row=dw.stride(1), dw_part=dw.stride(0),
            parts=parts, B=batch, H=height, W=width, HO=high, WO=wide, CIN=inside, COUT=outside,
            **self.geometry.constants(), BM=tile.rows, BN=tile.cols, BK=tile.inner,
            EVEN=inside % tile.rows == 0 and outside % tile.cols == 0, ACROSS=tile.across,
            PRECISION=self.precision, FAR=are_far(x, dy), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return dw


def patches(g: Geometry, x: Tensor, width: int) -> Tensor:
    """Return what meets each output pixel, ``[C, B, Ho, Wo, width]``: taps and channels, then zeros."""
    clients, batch, height, wide, inside = x.shape
    size = g.outputs((height, wide))
    out, columns = x.new_empty(clients, batch, *size, width), triton.next_power_of_2(width)
    rows = max(1, min(128, 8192 // columns))
    launch(
        patches_kernel, (triton.cdiv(batch * size[0] * size[1], rows), clients),
        x=x, out=out, B=batch, H=height, W=wide, HO=size[0], WO=size[1], CIN=inside, WIDTH=width, **g.constants(),
        INSIDE=g.padding == (0, 0), BM=rows, BK=columns, FAR=are_far(x, out), num_warps=4,
    )  # fmt: skip
    return out
