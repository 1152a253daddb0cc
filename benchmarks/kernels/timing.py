"""Times of calls that are captured as CUDA graphs, so that the host does not count."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The call as a CUDA graph, after a warm-up on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def replay_time(graph: torch.cuda.CUDAGraph) -> float:
    """Replay a graph, and return its milliseconds by device events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def milliseconds(graph: torch.cuda.CUDAGraph, budget_ms: float = 200.0) -> float:
    """Median time of a replay."""
    for _ in range(3):
        graph.replay()
    times: list[float] = []
    while len(times) < 7 or (sum(times) < budget_ms and len(times) < 200):
        times.append(replay_time(graph))
    return statistics.median(times)
