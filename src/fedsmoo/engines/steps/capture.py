"""Work on buffers that never move, captured once as a CUDA graph: a replay costs the host one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from fedsmoo.core.errors import first_line


def say_slower(what: str, error: Exception) -> None:
    """Tell that something works, but not in its fastest way, and why."""
    warnings.warn(f"{what} and runs slower: {first_line(error)}", RuntimeWarning, stacklevel=3)


def captured(work: Callable[[], None], stream: torch.cuda.Stream, fill: Callable[[], object]) -> Callable[[], None]:
    """The replay of ``work``, which was run twice on ``stream`` before; ``fill`` gives it something to work on."""
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(2):
            fill()
            work()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # On this stream, which is on the right device; calls of other threads, which fetch rows meanwhile, are no matter.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph.replay
