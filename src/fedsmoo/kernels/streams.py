"""A CUDA stream beside the current one: fork and join."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A CUDA stream beside the current one, or the same one where there is none.

    Programs of a higher priority (a lower number) start first where several streams have some ready. A stream that was
    not begun since it was last joined is not waited for: while steps are captured, it would be no part of the graph.
    """

    def __init__(self, device: torch.device, apart: bool, priority: int = 0) -> None:
        self.stream = torch.cuda.Stream(device, priority=priority) if apart and device.type == "cuda" else None
        self.begun = False

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Launch on the side stream inside this context, after all that the current stream was given so far."""
        if self.stream is None:
            yield
            return
        self.begun = True
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Make the current stream wait for the side stream, if anything was launched there."""
        if self.stream is not None and self.begun:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self.begun = False
