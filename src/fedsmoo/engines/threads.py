"""A number of threads that stays: sums of floating-point numbers depend on it."""

from __future__ import annotations

import os

import torch

from fedsmoo.core import FedsmooError

OFF = ("", "false", "0", "no")


def fix_threads(number: int | None = None) -> None:
    """Use this number of threads, or the present one, from now on, whatever else the machine is doing.

    Left alone, MKL takes fewer threads than it may where it sees fit; setting a number ends that. OpenMP goes by the
    machine's load only where somebody asks for it, and then nothing here could stop it.
    """
    if os.environ.get("OMP_DYNAMIC", "").strip().lower() not in OFF:
        raise FedsmooError(
            f"OMP_DYNAMIC={os.environ['OMP_DYNAMIC']} lets the number of threads follow the machine's load, so that a "
            "run would not give the same numbers twice: unset it"
        )
    torch.set_num_threads(number or torch.get_num_threads())
