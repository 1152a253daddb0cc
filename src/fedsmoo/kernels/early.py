"""Kernels that are placed while the one before them ends, on devices that can (compute capability 9.0).

Between two kernels of a stream the device drains and fills again. One that calls :func:`after_the_last` first may be
launched early: its programs are placed as soon as all of the kernel before have begun and there is room, and wait,
before they touch memory, until that kernel is done and all it wrote can be read. Programs that wait hold their place:
this helps where nothing else would take it, in the forward pass, and not where weight gradients run beside.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from fedsmoo.kernels.runtime import interpreted


def early_serves(device: torch.device) -> bool:
    """Return whether the device places a kernel before the one in front of it is done."""
    return device.type == "cuda" and not interpreted() and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def after_the_last(EARLY: tl.constexpr):
    """Let the next kernel be placed, then wait for the one before; to be called before any load or store."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


def launched(early: bool) -> dict[str, Any]:
    """Return the options of a launch, early or not, of a kernel with a parameter ``EARLY``."""
    return {"EARLY": early} | ({"launch_pdl": True} if early else {})
