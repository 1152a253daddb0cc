"""The pixels of an image of Pillow's as bytes, one for each channel."""

from __future__ import annotations

from typing import Any

import numpy as np

GREY = ("1", "L", "LA")


class TooDeep(Exception):
    """The pixels do not fit into bytes."""


def pixels_of(image: Any, mode: str | None = None) -> np.ndarray:
    """Return an image as uint8 ``[H, W, 1 or 3]``, grey (``"L"``) or coloured (``"RGB"``); ``None``: as it is.

    Raises:
        TooDeep: for pixels of 16 or 32 bits, or floats, which Pillow would cut off at 255: a white picture.
    """
    if image.mode.startswith(("I", "F")):
        raise TooDeep(
            f"has pixels of more than 8 bits (mode {image.mode!r}), which would be cut off at 255: scale them to "
            "0..255 and save them as bytes, or give arrays of floats"
        )
    mode = mode or ("L" if image.mode in GREY else "RGB")
    pixels = np.asarray(image.convert(mode))
    return pixels[..., None] if mode == "L" else pixels
