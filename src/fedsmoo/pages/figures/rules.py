"""Pictures of partitions as such: who holds which class by each, and how clients see a sample where that differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.inputs import InputSkew, Noise
from fedsmoo.data.division.partition import PARTITIONS, Partition
from fedsmoo.data.division.shares import ClassWise, Quantity, Shards, Sizes
from fedsmoo.pages.figures.partition import counts, labels_shown, new_figure, save

COLUMNS, SEEN = 3, 4  # panels in a row; clients whose samples are shown


def examples(samples: int, clients: int) -> list[Partition]:
    """Return a partition of each kind that suits so many samples and clients."""
    least = max(1, min(10, samples // (4 * clients)))
    parts = np.arange(1, clients + 1)
    sizes = np.maximum(1, samples * parts // parts.sum())
    fitting = {
        ClassWise: ClassWise(least=least),
        Quantity: Quantity(alpha=2.0, least=least),
        Shards: Shards(),
        Sizes: Sizes(tuple(map(int, sizes))),
        Noise: Noise(0.5),
    }
    return [fitting.get(kind) or kind() for kind in PARTITIONS.values()]


def draw_rules(data: Dataset, path: Path, clients: int = 20, seed: int = 0) -> Path:
    """Draw a panel for each partition: clients from left to right, classes from top to bottom.

    Of partitions by which clients see samples differently, a panel shows one sample as some clients would see it.
    """
    if clients < SEEN:
        raise FedsmooError(f"clients is {clients}, but the picture needs {SEEN} or more")
    labels, classes = labels_shown(data)
    rules = examples(len(data.x_train), clients)
    rows = -(-len(rules) // COLUMNS)
    figure, whole = new_figure(9, 2.3 * rows + 0.3)
    whole.remove()
    for panel, rule in zip(figure.subplots(rows, COLUMNS, squeeze=False).ravel(), rules, strict=False):
        indices = rule.split(labels, classes, clients, seed)
        panel.set_title(shortened(rule.name), fontsize=10)
        if isinstance(rule, InputSkew):
            views(panel, rule, data, clients, seed)
        else:
            shares(panel, counts(indices, labels, classes))
    for panel in figure.axes[len(rules) :]:
        panel.set_axis_off()
    figure.suptitle(f"{data.name}: classes (rows) at {clients} clients (columns), darker where a client holds more")
    return save(figure, path)


def draw_views(rule: Partition, data: Dataset, path: Path, clients: int, seed: int) -> list[Path]:
    """Draw one sample as some clients see it, if by this partition they see it differently."""
    if not isinstance(rule, InputSkew) or clients < SEEN:
        return []
    figure, axes = new_figure(5, 1.8)
    axes.set_title(f"{data.name}, {rule.name}, {clients} clients: the same sample", fontsize=9)
    views(axes, rule, data, clients, seed)
    return [save(figure, path)]


def shortened(name: str) -> str:
    """Return a name that fits over a panel.

    >>> shortened("sizes-6,13,20,27,34,41,48"), shortened("iid")
    ('sizes-6,13,20,...', 'iid')
    """
    words = name.split(",")
    return name if len(words) < 4 else ",".join([*words[:3], "..."])


def shares(panel: Any, table: np.ndarray) -> None:
    """Draw samples per client and class."""
    from matplotlib import colormaps

    shades = colormaps["magma_r"].with_extremes(bad="white")  # nothing at all is white, a little is not
    panel.imshow(np.ma.masked_equal(table.T, 0), aspect="auto", cmap=shades, interpolation="nearest", vmin=0)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_color("0.8")


def views(panel: Any, rule: InputSkew, data: Dataset, clients: int, seed: int) -> None:
    """Draw the first training sample as some clients see it, side by side."""
    panel.set_axis_off()
    try:
        rule.refuse_unfit(data)
    except FedsmooError as e:
        panel.text(0.5, 0.5, "not of this data", ha="center", va="center", transform=panel.transAxes, gid=str(e))
        return
    shown = seen_by(rule, clients)
    pictures = [as_picture(rule.seen(data.x_train[:1].clone(), i, clients, seed)[0]) for i in shown]
    if any(picture.ndim < 2 for picture in pictures):
        panel.text(0.5, 0.5, "no images", ha="center", va="center", transform=panel.transAxes)
        return
    height, width = pictures[0].shape[:2]
    for k, (client, picture) in enumerate(zip(shown, pictures, strict=True)):
        left = k * (width + 1)
        panel.imshow(picture, cmap="gray", extent=(left, left + width, 0, height), interpolation="nearest")
        panel.text(left + width / 2, -0.1 * height, f"client {client}", ha="center", va="top", fontsize=7)
    panel.set_xlim(0, SEEN * (width + 1) - 1)
    panel.set_ylim(-0.3 * height, height)
    panel.set_aspect("equal")


def seen_by(rule: InputSkew, clients: int) -> Sequence[int]:
    """Return clients that see differently: the first, the last and some between, or one of each of the first groups."""
    if isinstance(rule, Noise):
        return [round(k * (clients - 1) / (SEEN - 1)) for k in range(SEEN)]
    return range(SEEN)


def as_picture(x: torch.Tensor) -> np.ndarray:
    """Return a sample as matplotlib draws it, ``[H, W]`` or ``[H, W, 3]``; what is no image stays what it is."""
    if x.dtype != torch.uint8 and x.dim() == 3:
        x = x.movedim(0, -1)
        x = (x - x.min()) / (x.max() - x.min()).clamp(min=1e-12)
    return (x[..., 0] if x.dim() == 3 and x.shape[-1] == 1 else x).numpy()
