"""Partitions by which clients see their samples differently: each with noise of its own level, or at its own angle.

Samples are divided as by ``iid``, so that every sample has one holder, and changed once, before training, as its holder
sees it: every engine trains on the same tensor. The test part stays as it is.

References: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022 (noise); Ghosh et
al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020 (rotations).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.streams import stream
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.draws import client_sizes, lists_by_owner
from fedsmoo.data.division.rule import Partition, positive_option


@dataclass(frozen=True)
class InputSkew(Partition):
    """Divides samples as ``iid`` does; a subclass says what becomes of a client's."""

    changes_inputs: ClassVar[bool] = True

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        sizes = client_sizes(len(labels), clients, replacement=False)
        samples = stream(seed, "partition").permutation(len(labels))
        return lists_by_owner(samples, np.repeat(np.arange(clients), sizes), clients)

    def with_inputs(self, data: Dataset, indices: Sequence[np.ndarray], seed: int) -> Dataset:
        self.refuse_unfit(data)
        x = data.x_train.clone()
        for client, mine in enumerate(indices):
            where = torch.from_numpy(np.asarray(mine))
            x[where] = self.seen(x[where], client, len(indices), seed)
        return data.with_inputs(x)

    @abstractmethod
    def refuse_unfit(self, data: Dataset) -> None:
        """Refuse data whose samples cannot be changed so."""

    @abstractmethod
    def seen(self, x: Tensor, client: int, clients: int, seed: int) -> Tensor:
        """Return samples as a client sees them."""


@dataclass(frozen=True)
class Noise(InputSkew):
    """Samples get Gaussian noise, from none at the first client to a standard deviation of level at the last.

    Client i of m has ``level * i / (m - 1)``. Of images the level is a share of the full brightness (0.1: 25.5 of 255),
    and pixels stay whole numbers from 0 to 255; other inputs get it in their own units.
    """

    label: ClassVar[str] = "noise"
    level: float = positive_option(0.1, "standard deviation at the last client; of images, 1 is the full brightness")

    def refuse_unfit(self, data: Dataset) -> None:
        if not data.is_image and not data.x_train.is_floating_point():
            raise FedsmooError(f"partition noise: the samples of {data.name!r} are text, which takes no noise")

    def seen(self, x: Tensor, client: int, clients: int, seed: int) -> Tensor:
        std = self.level * client / max(1, clients - 1)
        if std == 0:
            return x
        drawn = torch.from_numpy(stream(seed, "noise", client).standard_normal(tuple(x.shape)))
        if x.is_floating_point():
            return x + (std * drawn).to(x.dtype)
        return (x.double() + 255 * std * drawn).clamp(0, 255).round().to(x.dtype)


@dataclass(frozen=True)
class Rotation(InputSkew):
    """Images are turned: client i's by (i mod groups) times 360 / groups degrees, against the clock.

    Right angles move pixels; other angles average the nearest four, and what was outside of the image is 0.
    """

    label: ClassVar[str] = "rotation"
    groups: int = positive_option(4, "how many angles there are: 4 are 0, 90, 180 and 270 degrees")

    def refuse_unfit(self, data: Dataset) -> None:
        what = f"partition {self.name}: the samples of {data.name!r}"
        if not data.is_image and (data.x_train.dim() != 4 or not data.x_train.is_floating_point() or data.inputs):
            raise FedsmooError(f"{what} are no images, which alone can be turned")
        height, width = height_and_width(data.x_train)
        if height != width and self.groups > 2:
            raise FedsmooError(
                f"{what} are {height}x{width}, but only square images turn by {360 / self.groups:g} degrees"
            )

    def seen(self, x: Tensor, client: int, clients: int, seed: int) -> Tensor:
        return rotate(x, client % self.groups * 360 / self.groups)


def height_and_width(x: Tensor) -> tuple[int, int]:
    """Return height and width of images: bytes have their channels last, floats first."""
    return (x.shape[1], x.shape[2]) if x.dtype == torch.uint8 else (x.shape[2], x.shape[3])


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Return images turned against the clock."""
    last = x.dtype == torch.uint8
    if degrees % 90 == 0:
        return torch.rot90(x, int(degrees // 90), (1, 2) if last else (2, 3))
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Where a pixel comes from: the way back, with rows counted downwards, in units of half the (square) image.
    back = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]], dtype=torch.float64)
    planes = (x.movedim(-1, 1) if last else x).double()
    grid = torch.nn.functional.affine_grid(back.expand(len(x), 2, 3), list(planes.shape), align_corners=False)
    out = torch.nn.functional.grid_sample(planes, grid, align_corners=False)
    return (out.round().movedim(1, -1) if last else out).to(x.dtype)
