"""What travels: vectors and bytes, from what each method declares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedsmoo.algorithms.statistics import NAME as STATISTICS
from fedsmoo.core import Algorithm
from fedsmoo.core.layout import other_sizes

if TYPE_CHECKING:
    from fedsmoo.runs.record import Record


def round_bytes(
    algorithm: Algorithm, size: int, dtype: torch.dtype, clients: Collection[int], asked: Collection[int] = ()
) -> tuple[int, int]:
    """Return the bytes up and down in a round, in which each client sends and receives what the method declares.

    Clients that were ``asked`` for their loss before it were sent the model, with the running statistics that the
    server has of it, and sent a number; those that then take part have the model already.
    """
    width = torch.finfo(dtype).bits // 8
    model = [n for n in algorithm.down if n in ("w", STATISTICS)]

    def total(count: int, names: Sequence[str], bytes_of: Callable[[str, int, int], int]) -> int:
        return count * sum(bytes_of(n, algorithm.length(n, size), width) for n in names)

    many, others = len(clients), len(set(asked) - set(clients))
    up, down = total(many, algorithm.up, algorithm.bytes_up), total(many, algorithm.down, algorithm.bytes_of)
    return up + len(asked) * width, down + total(others, model, algorithm.bytes_of)


Travels = tuple[int, int, int]  # vectors that a client sends and receives in a round, and single numbers in all


def count_vectors(algorithm: Algorithm) -> Travels:
    """Return how many vectors a client sends and receives in a round, and how many single numbers in all."""
    others = other_sizes(algorithm)
    up, down = (sum(n not in others for n in names) for names in (algorithm.up, algorithm.down))
    return up, down, sum(algorithm.length(n, 0) for n in (*algorithm.up, *algorithm.down) if n in others)


def paper_vectors(algorithm: Algorithm) -> int:
    """Return the vectors per client and round as the paper counts: the busier way, twice (FedCM counts as double)."""
    return 2 * max(count_vectors(algorithm)[:2])


@dataclass(frozen=True)
class Reached:
    """The first evaluated round as good as a target, and what had been spent by then."""

    round: int
    bytes_up: int
    bytes_down: int
    seconds: float

    @property
    def bytes(self) -> int:
        return self.bytes_up + self.bytes_down

    @property
    def bytes_paper(self) -> int:
        """As the paper counts: those of the busier way, twice."""
        return 2 * max(self.bytes_up, self.bytes_down)


def first_reached(history: Sequence[Record], target: float) -> Reached | None:
    """Return when a run first was as good as a target by its leading metric; ``None`` if it never was."""
    up, down, seconds = 0, 0, 0.0
    for r in history:
        up, down = up + r.bytes_up, down + r.bytes_down
        seconds += r.seconds_train
        if r.reached(target):
            return Reached(r.round, up, down, seconds)
    return None


@dataclass(frozen=True)
class Ledger:
    """What a run has sent: vectors a client and round, bytes as they travel, and the paper's count beside them.

    ``full`` counts the bytes had the whole exported model travelled, where dead weights were left out.
    """

    vectors_up: int
    vectors_down: int
    vectors_paper: int
    bytes_up: int
    bytes_down: int
    bytes_paper: int
    bytes_full: int
    rounds: int
    messages: int  # client visits: the sum of the cohorts

    @property
    def bytes(self) -> int:
        return self.bytes_up + self.bytes_down


def ledger(method: Algorithm | Travels, history: Sequence[Record], size: int, full_size: int) -> Ledger:
    """Return the ledger of a run from its records; ``size`` numbers of the model travel, ``full_size`` are exported.

    ``method`` is the run's method, or what :func:`count_vectors` says of it. Where all parameters stay with clients,
    both sizes are 0, and so are all bytes.
    """
    up, down = sum(r.bytes_up for r in history), sum(r.bytes_down for r in history)
    vectors_up, vectors_down, numbers = method if isinstance(method, tuple) else count_vectors(method)
    vectors, paper = vectors_up + vectors_down, 2 * max(vectors_up, vectors_down)
    return Ledger(
        vectors_up=vectors_up,
        vectors_down=vectors_down,
        vectors_paper=paper,
        bytes_up=up,
        bytes_down=down,
        bytes_paper=2 * max(up, down),  # not by the vectors: what clients send may be compressed
        bytes_full=(up + down) * (vectors * full_size + numbers) // max(vectors * size + numbers, 1),
        rounds=len(history),
        messages=sum(len(r.cohort) for r in history),
    )


def human_bytes(n: float) -> str:
    """Return a number of bytes for people: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
