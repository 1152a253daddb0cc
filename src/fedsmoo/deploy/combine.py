"""From the replies of a round to one vector: the mean, or something that a few wrong replies cannot move far.

The robust ones count every reply alike, except ``bounded-mean``. Where a method's server needs a mean (SCAFFOLD's
control variates, FedDyn's duals) they are an approximation of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsmoo.core import Vectors, norm
from fedsmoo.core.share import count_of_share

MEAN = "mean"
KINDS = (MEAN, "median", "trimmed-mean", "bounded-mean")
COLUMNS = 2**20  # coordinates at a time: the replies of a large model are not copied as a whole


def cap_weights(weights: list[float], most: float) -> list[float]:
    """Return weights of which none is above ``most``, the others in their proportion; of one or two, as they are.

    >>> cap_weights([0.8, 0.15, 0.05], 0.5), cap_weights([0.9, 0.1], 0.5)
    ([0.5, 0.375, 0.125], [0.9, 0.1])
    """
    if len(weights) < 3 or max(weights) <= most:
        return weights
    most = max(most, 1 / len(weights))
    full: set[int] = set()
    while True:
        rest = sum(w for i, w in enumerate(weights) if i not in full)
        scale = (1 - most * len(full)) / rest if rest > 0 else 0.0
        over = {i for i, w in enumerate(weights) if i not in full and w * scale > most}
        if not over:
            return [most if i in full else w * scale for i, w in enumerate(weights)]
        full |= over


def median(rows: Tensor) -> Tensor:
    """Return the median of each coordinate; of an even number, the mean of the two in the middle."""
    rows, n = rows.sort(0).values, len(rows)
    return (rows[(n - 1) // 2] + rows[n // 2]) / 2


def trimmed_mean(rows: Tensor, trim: float) -> Tensor:
    """Return the mean of each coordinate without its smallest and largest values, a share ``trim`` of each.

    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [4.0], [1e9]]), 0.2)
    tensor([3.])
    """
    n = len(rows)
    out = min(max(count_of_share(n, trim), 1 if n > 2 and trim > 0 else 0), (n - 1) // 2)
    return rows.sort(0).values[out : n - out].mean(0)


def bounded_mean(rows: Sequence[Tensor], centre: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the mean of vectors none of which is further from the centre than the median one: longer ones are cut."""
    moved = [row - centre for row in rows]
    sizes = [norm(m.double()).item() for m in moved]
    usual = statistics.median(sizes)
    scales = [usual / size if size > usual else 1.0 for size in sizes]
    return centre + sum((w * s * m for w, s, m in zip(weights, scales, moved, strict=True)), torch.zeros_like(centre))


def combine_columns(rows: Sequence[Tensor], kind: str, trim: float) -> Tensor:
    """Return the median or the trimmed mean of each coordinate."""
    parts = []
    for i in range(0, rows[0].numel(), COLUMNS):
        some = torch.stack([row[i : i + COLUMNS] for row in rows])
        parts.append(median(some) if kind == "median" else trimmed_mean(some, trim))
    return torch.cat(parts)


def combine(kind: str, ups: Sequence[Vectors], down: Vectors, weights: Sequence[float], trim: float) -> Vectors:
    """Return one of all that was sent; ``down`` holds what was received under the same name, where that counts."""
    out = {}
    for name in ups[0].names():
        rows = [getattr(up, name) for up in ups]
        if kind == "bounded-mean":
            centre = getattr(down, name) if name in down.names() else torch.zeros_like(rows[0])
            out[name] = bounded_mean(rows, centre, weights)
        else:
            out[name] = combine_columns(rows, kind, trim)
    return Vectors(**out)
