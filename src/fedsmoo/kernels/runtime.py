"""Whether the Triton kernels can run here."""

from __future__ import annotations

import importlib.util
import os

import torch


def interpreted() -> bool:
    """Whether Triton is asked to run its kernels on the CPU, step by step (for tests)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def available(device: torch.device | str = "cuda") -> tuple[bool, str]:
    """Whether the kernels run on ``device``, and in words why not (empty when they do).

    >>> available("cpu") if not interpreted() else (False, "the kernels need a CUDA device, not cpu")
    (False, 'the kernels need a CUDA device, not cpu')
    """
    kind = torch.device(device).type
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed"
    if interpreted():
        return True, ""
    if kind != "cuda":
        return False, f"the kernels need a CUDA device, not {kind}"
    if not torch.cuda.is_available():
        return False, "torch finds no CUDA device"
    major, minor = torch.cuda.get_device_capability(torch.device(device))
    if major < 8:
        return False, f"the kernels need compute capability 8.0 or newer; this device has {major}.{minor}"
    return True, ""
