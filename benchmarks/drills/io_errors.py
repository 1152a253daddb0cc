"""Let each of a program's file operations fail once: see ``faults.py``."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.drills.parts.faults import disturbances
from benchmarks.drills.parts.outcome import Outcome


def drill(full: bool, seed: int) -> Iterator[Outcome]:
    return disturbances("I/O error", full, seed)
