"""What travels: vectors and bytes, from what each method declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedsmoo.core import Algorithm

if TYPE_CHECKING:
    from fedsmoo.experiment.loop import Record


def round_bytes(algorithm: Algorithm, size: int, dtype: torch.dtype, clients: int) -> tuple[int, int]:
    """Bytes up and down in a round: each client of the cohort sends and receives the declared vectors."""
    rounded = getattr(algorithm, "vector_bytes", None)  # a method that rounds what travels knows its size
    vector = size * torch.finfo(dtype).bits // 8 if rounded is None else rounded(size)
    return clients * len(algorithm.up) * vector, clients * len(algorithm.down) * vector


def paper_vectors(algorithm: Algorithm) -> int:
    """Vectors per client and round as the paper counts: the busier way, both ways (FedCM counts as double)."""
    return 2 * max(len(algorithm.down), len(algorithm.up))


@dataclass(frozen=True)
class Reached:
    """The first evaluated round at or above a target accuracy, and what had been spent by then."""

    round: int
    bytes: int
    seconds: float


def reached(history: Sequence[Record], target: float) -> Reached | None:
    """When a run first reached a test accuracy; ``None`` if it never did."""
    spent, seconds = 0, 0.0
    for r in history:
        spent += r.bytes_up + r.bytes_down
        seconds += r.seconds_train
        if r.test_accuracy is not None and r.test_accuracy >= target:
            return Reached(r.round, spent, seconds)
    return None
