"""Ctrl-C once: finish the round. Twice: stop at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class Interrupt:
    """Whether somebody asked to stop; call it to know."""

    asked: bool = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within this, the first Ctrl-C (or SIGTERM) only sets the flag; the second one ends the program."""
    interrupt = Interrupt()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True
        sys.stderr.write("\nfinishing this round and saving; press Ctrl-C again to stop at once\n")

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
    except ValueError:  # not in the main thread: signals are somebody else's business
        pass
    try:
        yield interrupt
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
