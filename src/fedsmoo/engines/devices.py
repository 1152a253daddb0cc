"""Devices by name, where samples lie, and whether threads have cores to run on."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, first_line
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.client_state.memory import total_bytes

CROWDED = 1.5  # programs that want to compute, for each of the machine's cores
BUSY = (
    "this machine is busy with other programs, and threads that share an operation wait for each other: "
    "OMP_NUM_THREADS=1 may be several times as fast here"
)


def make_device(name: str) -> torch.device:
    """Return the device of a name, ``auto`` a GPU where there is one; one that cannot be used is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise FedsmooError(f"device {name!r} cannot be used here: use cpu or auto ({first_line(e)[:80]})") from e
    return device


def staged(where: str, data: Dataset, device: torch.device) -> bool:
    """Return whether samples lie in the host's memory, from where batches are copied ahead of their steps.

    ``auto``: where they take more than half of the memory that a GPU has in all. What is free does not decide, though
    numbers are the same either way.
    """
    if where != "auto":
        return where == "host"
    return device.type == "cuda" and data.nbytes > total_bytes(device) // 2


def upload(t: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device; a GPU copies it in its turn, and nobody waits for that."""
    return t.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else t.to(device)


def synchronize(device: torch.device) -> None:
    """Wait for a GPU, so that clocks read true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_crowded(load: float, cores: int) -> bool:
    """Whether a machine's load of the last minute says that more programs want to compute than its cores can serve."""
    return load > CROWDED * cores


def load_of_machine() -> float:
    """Return how many programs wanted to compute in the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of cores that this process may use: by its affinity, and by its container's share of time."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    try:
        share, _, period = quota.read_text().partition(" ")
        return max(1, min(cores, round(int(share) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


def slow_threads(engine: str, device: torch.device) -> str | None:
    """Return a line where threads of an engine will wait for each other; ``None``: they will not, or were asked for.

    Nothing is changed: the number of threads decides the last bits, so load must not decide about it.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or os.environ.get("OMP_NUM_THREADS"):
        return None
    if threads > (cores := usable_cores()):
        return f"{threads} threads on {cores} cores wait for each other: OMP_NUM_THREADS={cores} is faster"
    shares = engine != "threads"  # which gives each thread clients of its own
    return BUSY if shares and is_crowded(load_of_machine(), os.cpu_count() or 1) else None
