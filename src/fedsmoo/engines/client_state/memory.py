"""How many clients fit in memory at once, by a rule of sizes; how much is free; freeing memory.

Sums over clients depend in their last bits on how many train at once, so that follows what a device has in all, never
what other programs leave free.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.distributed.launcher import launched

# Models that live at once besides the declared vectors: the weights and their successor, two gradients, the direction.
WORKING_COPIES = 5
MEMINFO = Path("/proc/meminfo")
UNKNOWN = 2**32  # bytes of a system that does not say
NO_ROOM = ("out of memory", "DefaultCPUAllocator")  # in what PyTorch says, where it has no exception of its own for it


def total_bytes(device: torch.device) -> int:
    """Return all memory of a device: the GPU's, or the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return pages("SC_PHYS_PAGES")


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device: the GPU's, or the machine's with reclaimable caches of files."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # blocks that the allocator caches are free, too
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):  # not on this system
        return pages("SC_AVPHYS_PAGES")


def pages(name: str) -> int:
    """Return a number of memory pages that the system reports, in bytes."""
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return UNKNOWN


def release() -> None:
    """Free what finished runs held: collect reference cycles, and return the allocator's cached blocks to the GPU."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def ran_out(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, says that memory ran out: compilers wrap it."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in NO_ROOM):
            return True
        error = error.__cause__ or error.__context__
    return False


def bytes_per_client(setup: Setup) -> int:
    """Return the bytes of the vectors of one client that trains."""
    a, size = setup.algorithm, setup.task.model.layout.size
    held = (*a.own, *a.own, *a.local, *a.local, *a.up)
    numbers = sum(a.length(n, size) for n in held) + WORKING_COPIES * size
    return numbers * torch.finfo(setup.task.dtype).bits // 8


def reply_bytes(setup: Setup) -> int:
    """Return the bytes that the server gathers of one client, where it sees every reply."""
    a, task = setup.algorithm, setup.task
    return sum(a.length(n, task.model.layout.size) for n in a.rows) * torch.finfo(task.dtype).bits // 8


def place_of_rows(setup: Setup, clients: int) -> torch.device:
    """Return where the replies of so many clients are gathered: on the device, or in the host's memory.

    The latter where they take more than a quarter of a GPU, of a rule that takes some columns at a time.
    """
    a, device = setup.algorithm, setup.task.device
    fits = clients * reply_bytes(setup) <= total_bytes(device) // 4
    return device if fits or not a.columnwise or a.stays or launched() else torch.device("cpu")


def refuse_too_many_rows(setup: Setup, clients: int) -> None:
    """Refuse to gather the replies of so many clients if they, and what a rule makes of them, would fill the memory.

    Raises:
        FedsmooError: if they take more than a quarter of the memory, or than half of it where a rule takes some columns
            at a time.
    """
    a, place, need = setup.algorithm, place_of_rows(setup, clients), clients * reply_bytes(setup)
    part = 2 if a.columnwise and place.type == "cpu" else 4
    room = total_bytes(place) // part
    if need > room:
        raise FedsmooError(
            f"the server of {a.label} sees every reply: those of {clients} clients are {need / 1e9:.1f} GB, but "
            f"{'half' if part == 2 else 'a quarter'} of the memory of {place} is {room / 1e9:.1f} GB: use a smaller "
            "cohort or model, or a method whose server needs the mean alone"
        )


def activation_bytes(setup: Setup, batch_size: int) -> int:
    """Return the bytes that a forward pass of one client's batch keeps for the backward pass: counted, not measured.

    Zero for a model that does not fit its data: the first round reports that.
    """
    task, kept = setup.task, dict[tuple[int, int], int]()
    w = task.model.initial().to(task.device, task.dtype).requires_grad_()

    def count(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() != w.untyped_storage().data_ptr():  # weights are counted among the vectors
            kept[t.data_ptr(), t.nbytes] = min(t.nbytes, t.untyped_storage().nbytes())
        return t

    task.model.train()
    try:
        with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            x = task.inputs(task.data.x_train[:batch_size])
            out = task.model.forward(task.model.layout.split(w), x)  # noqa: F841  keeps alive what was kept
    except Exception as e:  # the user's own code
        if ran_out(e):
            raise
        return 0
    return sum(kept.values())


def clients_that_fit(setup: Setup, batch_size: int = 1) -> int:
    """Return how many clients may train at once in half of the device's memory; at least one.

    A client needs its vectors, what its forward pass keeps, and as much again for the gradients of that.
    """
    need = bytes_per_client(setup) + 2 * activation_bytes(setup, batch_size)
    return max(1, total_bytes(setup.task.device) // 2 // need)
