"""Find out whether the Triton kernels can run here, and launch them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from fedsmoo.core.errors import FedsmooError

PRECISIONS = {
    # name: (type of activations and of the weights in products, how a float32 product is done)
    "bf16": (torch.bfloat16, "ieee"),
    "tf32": (torch.float32, "tf32"),
    "fp32": (torch.float32, "tf32x3"),  # three products, float32's accuracy: faster than plain arithmetic
}

Launch = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]  # kernel, grid, arguments, options

_compile_only: ContextVar[bool] = ContextVar("compile_only", default=False)
_noted: ContextVar[list[Launch] | None] = ContextVar("noted", default=None)


def interpreted() -> bool:
    """Return whether Triton interprets its kernels on the CPU, step by step (for tests)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def available(device: torch.device | str = "cuda") -> tuple[bool, str]:
    """Return whether the kernels run on ``device``, and in words why not (empty when they do).

    >>> available("cpu")[1] if not interpreted() and importlib.util.find_spec("triton") else "no"  # doctest: +SKIP
    'the kernels need a CUDA device, not cpu'
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


def require(device: torch.device | str) -> None:
    """Raise FedsmooError when the kernels cannot run on ``device``."""
    ok, why = available(device)
    if not ok:
        raise FedsmooError(f"the hand-written kernels cannot run here: {why}; choose another gradient oracle")


def keep_cache_in_one_place() -> None:
    """Fix the folder of compiled kernels for this process.

    ``torch.compile`` changes it if its own cache misses, and the next process would look in the other folder.
    """
    from triton import knobs

    os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Launch a kernel; inside :func:`compiling` only compile it, inside :func:`noting` only note it."""
    noted = _noted.get()
    if noted is not None:
        noted.append((kernel, grid, args, meta))
    elif _compile_only.get():
        kernel.warmup(*args, grid=grid, **meta)
    else:
        kernel[grid](*args, **meta)


@contextmanager
def noting() -> Iterator[list[Launch]]:
    """Note launches in order and run nothing, inside this context: needs no device."""
    launches: list[Launch] = []
    token = _noted.set(launches)
    try:
        yield launches
    finally:
        _noted.reset(token)


@contextmanager
def compiling(threads: int) -> Iterator[None]:
    """Compile launches in parallel and run nothing, inside this context; on leaving, every kernel is ready."""
    from triton.runtime._async_compile import AsyncCompileMode, active_mode

    token = _compile_only.set(True)
    try:
        with ThreadPoolExecutor(threads) as pool, AsyncCompileMode(pool):
            yield
    finally:
        _compile_only.reset(token)
        active_mode.set(None)  # Triton leaves it on after a compilation that failed
