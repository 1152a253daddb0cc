"""Matrix products in the precision of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.operators.layers import Instead

if TYPE_CHECKING:
    from fedsmoo.engines.task import Task

IDLE = "precision is bf16, but this CPU computes in float32"


def idle_precision(precision: str, device: torch.device) -> bool:
    """Return whether a device does not have a precision: bf16 on a CPU without instructions for it."""
    return precision == "bf16" and device.type == "cpu" and not cpu_has_bf16()


@cache
def cpu_has_bf16() -> bool:
    """Whether this CPU multiplies numbers in bf16 itself: by AVX-512, or by Intel's AMX."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def in_float32(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a normalisation that takes its inputs in float32, as on a GPU."""

    def run(x: Tensor, *given: Any, **named: Any) -> Tensor:
        return norm(x.float(), *given, **named)

    return run


NORMS = (F.layer_norm, F.group_norm, F.batch_norm, F.instance_norm, F.rms_norm)
WHOLE = {norm: in_float32(norm) for norm in NORMS}


@contextmanager
def rounded_on_a_cpu() -> Iterator[None]:
    """Make products in bf16 on a CPU, whose autocast leaves out norms; ``vmap`` has no rule for mixed types."""
    with torch.autocast("cpu", torch.bfloat16), Instead(WHOLE):
        yield


@contextmanager
def products(task: Task) -> Iterator[None]:
    """Make matrix products in the task's precision, on its device, inside this context."""
    if task.device.type != "cuda":
        with rounded_on_a_cpu() if task.precision == "bf16" else nullcontext():
            yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(task.device))  # kernels and graphs are launched on the current one
        # Without `deterministic`, cuDNN may take gradients that add by atomics: other bits every time.
        exact = {"deterministic": True, "allow_tf32": task.precision != "fp32"}
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, **exact))
        if task.precision == "bf16":
            stack.enter_context(torch.autocast("cuda", torch.bfloat16))
        matmul.allow_tf32 = task.precision != "fp32"
        try:
            yield
        finally:
            matmul.allow_tf32 = before
