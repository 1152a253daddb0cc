"""Batches of samples that lie in the host's memory, copied to the device ahead of the steps that read them.

A ring of buffers on the device holds a few batches. The host gathers the next ones into pinned memory while the device
steps, and they are copied on a stream of their own. What is copied when follows from the number of the step alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsmoo.engines.task import Samples, Task

SLOTS = 4  # batches on the device: two that steps read, and two that come
AHEAD = 2


class Ring:
    """The next batches of some clients, ``[SLOTS, C, B, ...]`` on the device: batch ``k`` lies in slot ``k % SLOTS``.

    Everything is queued: an event says when a copy has arrived, another one when a slot has been read and may be filled
    again. Where the device is the CPU, copies are plain and there is nothing to wait for.
    """

    def __init__(self, task: Task, clients: int, width: int) -> None:
        self.source, self.device = Samples(task.data.x_train, task.data.y_train), task.device
        self.slots = Samples(*(self._room(t, (clients, width), task.device) for t in self.source))
        self.cuda = task.device.type == "cuda"
        self.pinned = Samples(*(self._room(t, (clients, width), pin=True) for t in self.source)) if self.cuda else None
        self.stream = torch.cuda.Stream(task.device) if self.cuda else None
        if self.stream is not None:
            for slots in self.slots:
                slots.record_stream(self.stream)
        self.arrived: list[torch.cuda.Event | None] = [None] * SLOTS
        self.begin(torch.zeros(0, clients, width, dtype=torch.int64))

    @staticmethod
    def _room(like: Tensor, shape: Sequence[int], device: torch.device | None = None, pin: bool = False) -> Tensor:
        return torch.zeros(SLOTS, *shape, *like.shape[1:], dtype=like.dtype, device=device, pin_memory=pin)

    def begin(self, index: Tensor) -> None:
        """Begin a round: batch ``k`` will be the samples ``index[k]``, ``[C, B]`` on the host, of the first C rows."""
        self.index, self.staged, self.read = index, 0, 0
        self.free = [self._event()] * SLOTS

    def _event(self) -> torch.cuda.Event | None:
        """Return an event after all that the current stream was given so far."""
        return torch.cuda.current_stream(self.device).record_event() if self.cuda else None

    def need(self, read: int, upto: int) -> None:
        """Have batches below ``upto`` lie in their slots for what is queued next; those below ``read`` were read.

        At most ``SLOTS - AHEAD`` batches are read at once.
        """
        if read > self.read:
            now = self._event()
            for k in range(max(self.read, read - SLOTS), read):
                self.free[k % SLOTS] = now
            self.read = read
        self._stage(upto)
        last = self.arrived[(min(upto, self.staged) - 1) % SLOTS]  # copies arrive in their order
        if last is not None:
            torch.cuda.current_stream(self.device).wait_event(last)

    def ahead(self) -> None:
        """Start copying the batches after those that were asked for."""
        self._stage(self.read + SLOTS)

    def _stage(self, upto: int) -> None:
        for k in range(self.staged, min(upto, len(self.index))):
            self._copy(k % SLOTS, self.index[k])
            self.staged = k + 1

    def _copy(self, slot: int, index: Tensor) -> None:
        """Copy samples ``index [C, B]`` into a slot."""
        before = self.arrived[slot]
        if before is not None:
            before.synchronize()  # pinned memory is free once it was copied
        flat, pinned = index.reshape(-1), self.slots if self.pinned is None else self.pinned
        for source, room in zip(self.source, pinned, strict=True):
            torch.index_select(source, 0, flat, out=room[slot, : len(index)].flatten(0, 1))
        if self.stream is None:
            return
        free = self.free[slot]
        if free is not None:
            self.stream.wait_event(free)
        with torch.cuda.stream(self.stream):
            for room, target in zip(pinned, self.slots, strict=True):
                target[slot, : len(index)].copy_(room[slot, : len(index)], non_blocking=True)
            self.arrived[slot] = self.stream.record_event()

    def at(self, k: Tensor) -> Samples:
        """Return the batch whose number lies on the device, ``[1]``: recorded work reads it anew at every replay."""
        return Samples(*(slots.index_select(0, k % SLOTS)[0] for slots in self.slots))

    def take(self, k: int) -> Samples:
        """Return batch ``k``, good until the next is taken; steps that are queued one by one take each in its turn."""
        self.need(k, k + 1)
        found = Samples(*(slots[k % SLOTS, : self.index.shape[1]] for slots in self.slots))
        self.ahead()
        return found
