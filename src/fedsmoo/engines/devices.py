"""Devices by name, and where samples lie."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, first_line
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.client_state.memory import total_bytes


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
