"""Kernels that begin while the one before them ends, on devices that can (compute capability 9.0).

Between two kernels of a stream the device drains and fills again, a microsecond or two each time; a recurrence has as
many gaps as time steps. The programs of a kernel that is launched early are placed as soon as the last of the kernel
before have been, and wait, before they touch memory, until that kernel is done and all it wrote can be read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def after_the_last(EARLY: tl.constexpr):
    """Let the next kernel be placed, then wait for the one before, if this was launched early (or return at once).

    To be called before any load or store.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
