"""Whether the threads of a run on a CPU have cores to run on, and what to do where they have not."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fedsmoo.engines.contract import Engine

CROWDED = 1.5  # programs that want to compute, for each of the machine's cores
BUSY = (
    "this machine is busy with other programs, and threads that share an operation wait for each other: "
    "OMP_NUM_THREADS=1 may be many times faster here"
)


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


def slow_threads(engine: Engine, device: torch.device) -> str | None:
    """Return a line for a run whose threads will wait for each other; ``None`` where they will not, or were asked for.

    Nothing is changed: the number of threads decides the last bits, so load must not decide about it.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or os.environ.get("OMP_NUM_THREADS"):
        return None
    if threads > (cores := usable_cores()):
        return f"{threads} threads on {cores} cores wait for each other: OMP_NUM_THREADS={cores} is faster"
    shares = engine.name != "threads"  # which gives each thread clients of its own
    return BUSY if shares and is_crowded(load_of_machine(), os.cpu_count() or 1) else None
