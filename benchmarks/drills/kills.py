"""Kill a program at each of its file operations: see ``faults.py``."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.drills.parts.faults import disturbances
from benchmarks.drills.parts.outcome import Outcome


def drill(full: bool, seed: int) -> Iterator[Outcome]:
    return disturbances("killed", full, seed)
