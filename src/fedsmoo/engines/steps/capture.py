"""GPU work on static buffers, captured once as a CUDA graph: a replay costs the host one call."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedsmoo.core.errors import first_line


def warn_slower(what: str, error: Exception, slower: list[str]) -> None:
    """Warn, once, that something works, but not in its fastest way, and why; and note it in a list."""
    said = f"{what} and runs slower: {first_line(error)}"
    if said not in slower:
        slower.append(said)
        warnings.warn(said, RuntimeWarning, stacklevel=3)


def captured(run: Callable[[], None], stream: torch.cuda.Stream, fill: Callable[[], object]) -> Callable[[], None]:
    """Capture ``run`` as a CUDA graph, after two warm-up calls on ``stream``, and return its replay.

    ``fill`` puts inputs into the buffers before each warm-up call; what that computes is thrown away.
    """
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            for _ in range(2):
                fill()
                run()
    finally:  # what fails leaves work behind that still writes to buffers, whose memory is given out again
        current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # On this stream, which is on the right device; other threads, which fetch rows meanwhile, may call CUDA.
    with uncollected(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        run()
    return graph.replay


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python from collecting garbage: a graph of an earlier run, freed within a capture, would break that off."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
