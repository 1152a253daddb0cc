"""How many clients fit in memory at once, by a rule of sizes; how much is free; freeing memory.

Sums over clients depend in their last bits on how many train at once, so that follows what a device has in all, never
what other programs leave free.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedsmoo.core import FedsmooError
from fedsmoo.core.random.noise import Noise
from fedsmoo.core.random.streams import generator_apart
from fedsmoo.data.batches.plan import plan_bytes
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.distributed.launcher import launched
from fedsmoo.engines.oracles.products import products

# Models that live at once besides the declared vectors: the weights and their successor, two gradients, the direction.
WORKING_COPIES = 5
MEMINFO = Path("/proc/meminfo")
UNKNOWN = 2**32  # bytes of a system that does not say
# Of glibc (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD): from which size on a block is returned when it is freed, and how much
# at the end of the heap is.
PAGES = {-3: 64 << 20, -1: 2**31 - 1}
NO_ROOM = ("out of memory", "DefaultCPUAllocator")  # in what PyTorch says, where it has no exception of its own for it


def total_bytes(device: torch.device) -> int:
    """Return all memory of a device: the GPU's, as far as this process may have it, or the machine's."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        part = torch.cuda.get_per_process_memory_fraction(index)  # 1, unless somebody has set a limit
        return int(torch.cuda.get_device_properties(device).total_memory * part)
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


def allocator() -> Any:
    """Return the C library whose allocator PyTorch's memory on a CPU is from; ``None`` where it may not be glibc's."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None


@cache
def keep_pages(device: torch.device) -> None:
    """Keep memory that is freed, from now on, for training on a CPU by glibc's allocator, until :func:`release`.

    Steps ask for the same blocks again and again. Left alone the allocator returns large ones to the system, which
    fills their pages with zeros when it gives them out again: a quarter of the time of a network on images.
    """
    library: Any = allocator() if device.type == "cpu" else None
    if hasattr(library, "mallopt"):
        for option, value in PAGES.items():
            library.mallopt(option, value)


def release() -> None:
    """Free what finished runs held: collect reference cycles, and return what allocators keep, to GPU and system."""
    gc.collect()
    if hasattr(library := allocator(), "malloc_trim"):
        library.malloc_trim(0)
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


def refuse_too_large_plan(
    sizes: Sequence[int], cohort: int, batch_size: int, epochs: int | None, steps: int | None, augment: bool
) -> None:
    """Refuse rounds whose batches, as lists of samples, would take more than half of the machine's memory.

    Raises:
        FedsmooError: which names the setting to lower.
    """

    def need(width: int) -> int:
        return plan_bytes(sizes, cohort, width, epochs, steps, augment)

    room, found = total_bytes(torch.device("cpu")) // 2, need(batch_size)
    if found <= room:
        return
    lower = f"local_epochs (now {epochs})" if steps is None else f"local_steps (now {steps})"
    if augment and need(min(batch_size, max(sizes))) <= room:
        lower = f"batch_size (now {batch_size})"
    raise FedsmooError(
        f"the batches of a round would take {found / 1e9:.3g} GB before a step is made, but half of the memory is "
        f"{room / 1e9:.3g} GB: lower {lower}" + (" or the cohort" if cohort > 1 else "")
    )


def refuse_too_many_clients(clients: int, classes: int) -> None:
    """Refuse to divide samples among so many clients that their lists, and shares of classes, would fill the memory."""
    need, room = clients * (240 + 48 * classes), total_bytes(torch.device("cpu")) // 2
    if need > room:
        raise FedsmooError(
            f"clients is {clients}: to divide samples of {classes} classes among them takes {need / 1e9:.3g} GB, but "
            f"half of the memory is {room / 1e9:.3g} GB: lower clients"
        )


def activation_bytes(setup: Setup, batch_size: int) -> int:
    """Return the bytes that the loss of one client's batch keeps for its gradient: counted, not measured.

    These are the tensors that autograd saves in one pass in train mode, in the precision of the run, each block of
    memory once. Weights are counted among the vectors, and what is frozen is there once for all clients. Zero for a
    model that does not fit its data: the first round reports that.
    """
    task, kept = setup.task, dict[int, int]()
    w = task.model.initial().to(task.device, task.dtype).requires_grad_()
    shared = {block(t) for t in (w, *task.model.constants.values(), *task.model.module.parameters())}

    def count(t: Tensor) -> Tensor:
        if block(t) not in shared:
            kept[block(t)] = t.untyped_storage().nbytes()
        return t

    index = torch.arange(min(batch_size, len(task.data.x_train)), device=task.data.x_train.device)
    task.model.train()
    try:
        with generator_apart(), products(task), saved_tensors_hooks(count, lambda t: t):
            batch = task.batch(index, torch.ones(len(index), dtype=task.dtype, device=task.device))
            noise = Noise((0, 0)) if task.model.random else None
            out = task.model.forward(task.model.layout.split(w), batch.x, noise)
            loss = (batch.weight * task.loss(out, batch.y)).sum()  # noqa: F841  keeps alive what was kept
    except Exception as e:  # the user's own code
        return total_bytes(task.device) if ran_out(e) else 0  # of which not even one client has room
    return sum(kept.values()) * batch_size // max(len(index), 1)


def block(t: Tensor) -> int:
    """Return what names the block of memory that a tensor is in, or a part of."""
    return t.untyped_storage().data_ptr()


def clients_that_fit(setup: Setup, batch_size: int = 1) -> int:
    """Return how many clients may train at once in half of the device's memory; at least one.

    A client needs its vectors, what its loss keeps, and as much again for the gradients of that.
    """
    need = bytes_per_client(setup) + 2 * activation_bytes(setup, batch_size)
    return max(1, total_bytes(setup.task.device) // 2 // need)
