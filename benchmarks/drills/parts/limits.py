"""How much time and memory a piece of code takes, and an end to it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 10  # of the processor: how busy the machine is does not matter


def peak() -> int:
    """Return the most memory that this process has had since it was last asked to forget that, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def limited() -> Iterator[None]:
    """Raise an error in what takes too many seconds of the processor."""

    def late(*_: Any) -> None:
        raise AssertionError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def refuse_code(path: Path, sha256: str) -> None:
    raise AssertionError(f"{path} would be run")
