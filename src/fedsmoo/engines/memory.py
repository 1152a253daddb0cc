"""How many clients fit in memory at once, and giving memory back."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch

from fedsmoo.engines.base import Setup

# Models that live at once besides the declared vectors: the weights and their successor, two gradients, the direction.
WORKING_COPIES = 5
MEMINFO = Path("/proc/meminfo")


def available_bytes(device: torch.device) -> int:
    """Free memory of a device: the GPU's, or the machine's, with what the system can give back (caches of files)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what earlier runs left in the allocator is free, too
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):  # not on this system
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # a system that does not say
        return 2**32


def release() -> None:
    """Give back what finished runs held: objects that refer to each other wait for the collector, and their buffers on
    the device with them."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def bytes_per_client(setup: Setup) -> int:
    """What one client of a running cohort needs for its vectors (activations come on top)."""
    algorithm, size = setup.algorithm, setup.task.model.layout.size
    vectors = 2 * len(algorithm.own) + 2 * len(algorithm.local) + len(algorithm.up) + WORKING_COPIES
    return vectors * size * torch.finfo(setup.task.dtype).bits // 8


def clients_that_fit(setup: Setup) -> int:
    """How many clients may run at once using half of what is free; at least one."""
    return max(1, available_bytes(setup.task.device) // 2 // bytes_per_client(setup))
