"""A rank other than 0 of a job: it trains its clients and answers rank 0; it prints and writes nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedsmoo.engines.distributed.ranks import Ended
from fedsmoo.runs.simulation import Simulation


def follow(simulation: Simulation) -> None:
    """All rounds that rank 0 starts, until it ends the job."""
    with patient(), suppress(Ended):
        simulation.run()
        simulation.engine.serve()


@contextmanager
def patient() -> Iterator[None]:
    """Leave Ctrl-C to rank 0, which saves first and then ends the job; a lost rank 0 is noticed all the same."""
    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread: signals are somebody else's business
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
