"""Normalisation and random flips and crops on the compute device, for any number of clients at once.

The images stay uint8 until a step needs them. What is random is drawn on the host, outside the hot loop, as three small
arrays, so that every engine sees the same pictures:

- a horizontal flip with probability 1/2,
- then, with probability 1/2, a shift by -pad..pad pixels in each direction, each of the (2 pad + 1)^2 shifts alike:
  the usual random crop after padding by ``pad``, since padding and cropping move the picture and zeros fill the gap.

The zeros are put in *after* normalisation (they show the mean colour, not black), as the authors' released code does;
it pads by 4 for images of 32x32 and by 8 for 64x64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor


def padding(height: int) -> int:
    """Return the customary padding: an eighth of the image, 4 for 32x32 and 8 for 64x64."""
    return max(1, height // 8)


def draws(rng: np.random.Generator, shape: Sequence[int], pad: int = 4) -> dict[str, np.ndarray]:
    """Draw what happens to each of ``shape`` images: ``flip`` (bool) and the shift ``dy``, ``dx`` (0 if no crop)."""
    shape = tuple(shape)
    flip = rng.random(shape) < 0.5
    crop = rng.random(shape) < 0.5
    dy, dx = rng.integers(-pad, pad, size=(2, *shape), dtype=np.int8 if pad < 128 else np.int16, endpoint=True)
    return {"flip": flip, "dy": dy * crop, "dx": dx * crop}


def drawing(height: int) -> Callable[[np.random.Generator, Sequence[int]], dict[str, np.ndarray]]:
    """``draws`` with the customary padding for images of this height: what a plan of a round is made with."""
    return partial(draws, pad=padding(height))


def prepare(
    x: Tensor,
    draws: Mapping[str, np.ndarray | Tensor] | None,
    mean: Sequence[float] | Tensor | None,
    std: Sequence[float] | Tensor | None,
    dtype: torch.dtype = torch.float32,
    channels_first: bool = True,
) -> Tensor:
    """Network input from raw samples: ``(x / 255 - mean) / std``, flipped and shifted as drawn.

    Args:
        x: uint8 images ``[..., H, W, Ch]`` with any leading axes. Other tensors pass through: floats are cast to
            ``dtype``, integers (text) are left alone.
        draws: arrays of the leading shape as made by ``draws``, or ``None`` for the plain picture.
        mean, std: per channel, of values in 0..1. Tensors on ``x``'s device save a copy per call.
        dtype: of the result.
        channels_first: return ``[..., Ch, H, W]`` rather than ``[..., H, W, Ch]``.
    """
    if x.dtype != torch.uint8:
        return x.to(dtype) if x.is_floating_point() else x
    inside = None
    if draws is not None:
        x, inside = _move(x, {name: torch.as_tensor(d, device=x.device) for name, d in draws.items()})
    # Planes of one channel each, made while a pixel is still a byte, are several times faster to compute on.
    out = x.movedim(-1, -3).contiguous().to(dtype) / 255
    if mean is not None and std is not None:
        out = (out - _channels(mean, out)) / _channels(std, out)
    if inside is not None:
        out = out * inside.unsqueeze(-3).to(dtype)
    return out if channels_first else out.movedim(-3, -1)


def _channels(values: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)[:, None, None]


def _move(x: Tensor, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the pictures flipped and shifted, and a mask ``[..., H, W]`` of the pixels that come from the picture."""
    height, width, channels = x.shape[-3:]
    rows = torch.arange(height, device=x.device) + draws["dy"].long().unsqueeze(-1)
    columns = torch.arange(width, device=x.device) + draws["dx"].long().unsqueeze(-1)
    inside = _within(rows, height).unsqueeze(-1) & _within(columns, width).unsqueeze(-2)
    # The flip comes first, so a column of the shifted picture is mirrored to find its source.
    columns = torch.where(draws["flip"].unsqueeze(-1), width - 1 - columns, columns)
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    # One look-up of whole pixels in the list of all pixels of all pictures.
    picture = torch.arange(x.shape[:-3].numel(), device=x.device).reshape(*x.shape[:-3], 1, 1)
    source = (picture * height + rows.unsqueeze(-1)) * width + columns.unsqueeze(-2)
    pixels = x.reshape(-1, channels).index_select(0, source.reshape(-1))
    return pixels.reshape(x.shape), inside


def _within(position: Tensor, size: int) -> Tensor:
    return (position >= 0) & (position < size)
