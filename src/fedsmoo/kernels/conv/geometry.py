"""The shape of a two-dimensional convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsmoo.core.errors import FedsmooError

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """Kernel, stride, padding and dilation of a convolution, each for rows and columns.

    >>> Geometry((3, 3), (2, 2), (1, 1)).outputs((32, 32))
    (16, 16)
    """

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    @property
    def taps(self) -> int:
        """How many input pixels meet an output pixel."""
        return self.kernel[0] * self.kernel[1]

    def outputs(self, size: Pair) -> Pair:
        """Return height and width of the outputs of inputs of a height and width.

        Raises:
            FedsmooError: if there are none.
        """
        height, width = (
            (size[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1) // self.stride[i] + 1
            for i in (0, 1)
        )
        if height < 1 or width < 1:
            raise FedsmooError(f"a convolution of {self} has no outputs of inputs of {size[0]}x{size[1]}")
        return height, width

    def constants(self) -> dict[str, Any]:
        """Return what kernels are compiled for."""
        names = (("KH", "KW"), ("SH", "SW"), ("PH", "PW"), ("DH", "DW"))
        values = (self.kernel, self.stride, self.padding, self.dilation)
        return {n: v for pair, value in zip(names, values, strict=True) for n, v in zip(pair, value, strict=True)}
