"""Devices by name."""

from __future__ import annotations

import torch

from fedsmoo.core.errors import FedsmooError, first_line


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
