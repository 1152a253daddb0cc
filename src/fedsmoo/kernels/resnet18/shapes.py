"""The live weights of ResNet-18-GN on 32x32 images as one flat vector, and the way from and to torchvision's layout.

On maps of 1x1 a padded 3x3 kernel sees only its centre tap, and with stride 2 on 2x2 maps only four taps: the other
weights of layer 4 never meet a pixel, so they are left out (4.23 M of 11.18 M stay). Convolutions are stored
tap-major, ``[kh, kw, in, out]``, and the last layer ``[in, out]``, the way the kernels read them. Convolutions come
first; behind them, from :func:`fine_offset` on, what is always read in float32: norms and the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.layout import Layout

WIDTHS = (64, 128, 256, 512)
IMAGE_SIDE = 32
IMAGE_CHANNELS = 3
MOST_CLASSES = 1024  # which the last layer's kernels hold at once
STORED_CHANNELS = 4  # with a fourth of zeros, a pixel is one aligned load instead of three single ones
MARGIN = 4  # pixels of zeros stored on both sides of a row, so that rows of taps lie in it
STORED = (IMAGE_SIDE, IMAGE_SIDE + 2 * MARGIN, STORED_CHANNELS)  # an image as the kernels read it
ALIGN = 128  # numbers; rows of vectors then begin at full cache lines and can be read 16 bytes at a time


@dataclass(frozen=True)
class Conv:
    """A convolution as stored: ``taps`` live taps a side, starting at ``first_tap`` of ``kernel``.

    ``pad`` is the padding that the live taps need: the full kernel's padding less the taps cut off in front.
    """

    name: str
    inside: int
    outside: int
    kernel: int
    taps: int
    first_tap: int
    stride: int
    side_in: int
    side_out: int

    @property
    def pad(self) -> int:
        return self.kernel // 2 - self.first_tap


def live_conv(name: str, inside: int, outside: int, kernel: int, stride: int, side_in: int) -> Conv:
    """Return a "same"-padded convolution on maps ``side_in`` wide, with the taps that meet a pixel there."""
    pad = kernel // 2
    side_out = (side_in + 2 * pad - kernel) // stride + 1
    live = [t for t in range(kernel) if any(0 <= o * stride + t - pad < side_in for o in range(side_out))]
    return Conv(name, inside, outside, kernel, len(live), live[0], stride, side_in, side_out)


@dataclass(frozen=True)
class Block:
    """A BasicBlock: two convolutions and, where the shape changes, the shortcut's."""

    name: str
    conv1: Conv
    conv2: Conv
    down: Conv | None


def _blocks(side: int) -> list[Block]:
    blocks = []
    inside = WIDTHS[0]
    for stage, width in enumerate(WIDTHS, start=1):
        for index in range(2):
            name = f"layer{stage}.{index}"
            stride = 2 if stage > 1 and index == 0 else 1
            conv1 = live_conv(f"{name}.conv1", inside, width, 3, stride, side)
            conv2 = live_conv(f"{name}.conv2", width, width, 3, 1, conv1.side_out)
            down = live_conv(f"{name}.downsample.0", inside, width, 1, stride, side) if stride == 2 else None
            blocks.append(Block(name, conv1, conv2, down))
            inside, side = width, conv1.side_out
    return blocks


STEM = live_conv("conv1", IMAGE_CHANNELS, WIDTHS[0], 7, 2, IMAGE_SIDE)
POOLED_SIDE = (STEM.side_out + 2 - 3) // 2 + 1
BLOCKS = _blocks(POOLED_SIDE)
CONVS = {c.name: c for b in BLOCKS for c in (b.conv1, b.conv2, b.down) if c is not None} | {STEM.name: STEM}


def live_layout(classes: int = 10) -> Layout:
    """Return the names (torchvision's), stored shapes and offsets of the live weights.

    >>> live_layout(10).count, live_layout(10).size
    (4234826, 4234880)
    """
    shapes: dict[str, tuple[int, ...]] = {}
    fine: dict[str, tuple[int, ...]] = {}

    def add(conv: Conv, norm: str) -> None:
        shapes[f"{conv.name}.weight"] = (conv.taps, conv.taps, conv.inside, conv.outside)
        fine[f"{norm}.weight"] = fine[f"{norm}.bias"] = (conv.outside,)

    add(STEM, "bn1")
    for block in BLOCKS:
        add(block.conv1, f"{block.name}.bn1")
        add(block.conv2, f"{block.name}.bn2")
        if block.down is not None:
            add(block.down, f"{block.name}.downsample.1")
    fine["fc.weight"] = (WIDTHS[-1], classes)
    fine["fc.bias"] = (classes,)
    return Layout(shapes | fine, ALIGN)


def fine_offset(layout: Layout) -> int:
    """Return the offset of the parameters that are read in float32 whatever the precision."""
    return layout.offsets["bn1.weight"]


def stored_images(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return images ``[..., W, 3]`` as the kernels read them: ``[..., 4 + W + 4, 4]`` in the compute type."""
    return torch.nn.functional.pad(x.to(dtype), (0, STORED_CHANNELS - IMAGE_CHANNELS, MARGIN, MARGIN)).contiguous()


def shown_images(x: Tensor) -> Tensor:
    """Return the images ``[..., W, 3]`` that were stored.

    >>> stored_images(torch.ones(1, 2, 2, 3), torch.float32).shape, shown_images(torch.ones(1, 2, 10, 4)).shape
    (torch.Size([1, 2, 10, 4]), torch.Size([1, 2, 2, 3]))
    """
    return x[..., MARGIN:-MARGIN, :IMAGE_CHANNELS]


def to_torchvision(v: Tensor) -> dict[str, Tensor]:
    """Return the state dict, in torchvision's names and shapes, of a live vector ``[P]``; dead taps are zero.

    Raises:
        FedsmooError: if the vector has no live ResNet-18's length.
    """
    layout = live_layout(_classes(v))
    state = {}
    for name, value in layout.split(v).items():
        conv = CONVS.get(name.removesuffix(".weight"))
        if conv is not None:
            full = v.new_zeros(conv.outside, conv.inside, conv.kernel, conv.kernel)
            live = slice(conv.first_tap, conv.first_tap + conv.taps)
            full[:, :, live, live] = value.permute(3, 2, 0, 1)
            state[name] = full
        else:
            state[name] = value.T.contiguous() if name == "fc.weight" else value.clone()
    return state


def from_torchvision(state: Mapping[str, Tensor]) -> Tensor:
    """Return the live vector ``[P]`` of a state dict in torchvision's names and shapes; dead taps are dropped.

    Raises:
        FedsmooError: if a parameter is missing or has another shape.
    """
    if "fc.weight" not in state:
        raise FedsmooError("the state dict has no 'fc.weight': give a ResNet-18's parameters by torchvision's names")
    layout = live_layout(state["fc.weight"].shape[0])
    parts = {}
    for name, shape in layout.shapes.items():
        if name not in state:
            raise FedsmooError(f"the state dict has no '{name}': give all parameters of a ResNet-18 with GroupNorm")
        value = state[name]
        conv = CONVS.get(name.removesuffix(".weight"))
        if conv is not None:
            live = slice(conv.first_tap, conv.first_tap + conv.taps)
            value = value[:, :, live, live].permute(2, 3, 1, 0)
        elif name == "fc.weight":
            value = value.T
        if value.shape != torch.Size(shape):
            raise FedsmooError(
                f"'{name}' has shape {tuple(state[name].shape)}, not ResNet-18's for images of 3 channels"
            )
        parts[name] = value
    return layout.join(parts)


def _classes(v: Tensor) -> int:
    """Return the classes of a live vector of this length: each adds one column of 512 weights and a bias."""
    base, each = live_layout(0).count, WIDTHS[-1] + 1
    classes = (v.numel() - base) // each
    if v.dim() != 1 or classes < 1 or v.numel() != live_layout(classes).size:
        raise FedsmooError(
            f"a vector of shape {tuple(v.shape)} is not a live ResNet-18: its length must be "
            f"{base} + {each} x classes, rounded up to a multiple of {ALIGN}"
        )
    return classes
