"""Ctrl-C during a run: the first one lets the round end and be saved, the second one stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Interrupt:
    """Whether a signal asked to stop, and which; call it to know."""

    signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


@contextmanager
def deferred_interrupt(say: Callable[[], Any] = lambda: None, signals: Sequence[int] = SIGNALS) -> Iterator[Interrupt]:
    """Within this, let the first Ctrl-C (or SIGTERM) only set a flag, and call ``say``.

    Raises:
        KeyboardInterrupt: at the second one.
    """
    interrupt = Interrupt()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt():
            raise KeyboardInterrupt
        interrupt.signal = number
        say()

    with handled_by(handle, signals):
        yield interrupt


@contextmanager
def stopped_by(stop: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """Yield what says whether to stop: ``stop`` or, without it, a flag that the first Ctrl-C sets.

    In the end that signal goes to whoever handles it outside: Python raises ``KeyboardInterrupt``.
    """
    if stop is not None:
        yield stop
        return
    with deferred_interrupt(signals=not_ignored()) as interrupt:
        yield interrupt
    if interrupt.signal is not None:
        signal.raise_signal(interrupt.signal)


def not_ignored() -> list[int]:
    """Return the signals that ask to stop and are not ignored, as they are in a process started in the background."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def interrupts_left_to_rank_0() -> Iterator[None]:
    """Ignore Ctrl-C: rank 0 saves first and then ends the job. A lost rank 0 is noticed all the same."""
    with handled_by(signal.SIG_IGN, SIGNALS):
        yield


@contextmanager
def handled_by(handler: Any, signals: Sequence[int]) -> Iterator[None]:
    """Let a handler have the signals that ask to stop; in another thread than the main one, nothing can be done."""
    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread
        for number in signals:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for which, old in before.items():
            signal.signal(which, old)
