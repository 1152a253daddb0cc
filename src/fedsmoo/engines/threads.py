"""Fix the number of threads: sums of floating-point numbers depend on it."""

from __future__ import annotations

import os

import torch

from fedsmoo.core import FedsmooError

OFF = ("", "false", "0", "no")


def fix_threads(number: int | None = None) -> None:
    """Use this number of threads, or the present one, from now on, whatever else the machine is doing.

    By default MKL may take fewer threads than allowed; setting a number ends that. OpenMP follows the machine's load
    only where OMP_DYNAMIC asks for it, which cannot be undone here.

    Raises:
        FedsmooError: if OMP_DYNAMIC is set.
    """
    if os.environ.get("OMP_DYNAMIC", "").strip().lower() not in OFF:
        raise FedsmooError(
            f"OMP_DYNAMIC={os.environ['OMP_DYNAMIC']} lets the number of threads follow the machine's load, so that a "
            "run would not give the same numbers twice: unset it"
        )
    torch.set_num_threads(number or torch.get_num_threads())
