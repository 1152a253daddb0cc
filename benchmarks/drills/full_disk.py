"""Let the disk be full from each of a program's file operations on: see ``faults.py``."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.drills.parts.faults import disturbances
from benchmarks.drills.parts.outcome import Outcome


def drill(full: bool, seed: int) -> Iterator[Outcome]:
    return disturbances("full disk", full, seed)
