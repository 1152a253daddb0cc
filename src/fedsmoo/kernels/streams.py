"""Work beside other work: CUDA streams that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A CUDA stream beside the current one, or the same one where there is none.

    Programs of a higher priority (a lower number) start first where several streams have some ready.
    """

    def __init__(self, device: torch.device, apart: bool, priority: int = 0) -> None:
        self.stream = torch.cuda.Stream(device, priority=priority) if apart and device.type == "cuda" else None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, launches go to the side stream, after all that the current stream was given so far."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """The current stream waits for the side stream."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
