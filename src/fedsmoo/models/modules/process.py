"""Settings of PyTorch for the whole process, which several threads may ask for at the same time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from threading import Lock

import torch

ATTENTION = torch.backends.cuda  # which rules that of a CPU, too


class Setting:
    """A setting that the first who takes it makes, and the last who leaves it undoes.

    Threads that each set back what they had found would leave behind, for good, what another one had set.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self.make, self.changing = make, Lock()
        self.users, self.undo = 0, ExitStack()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the setting in force, in all threads, inside this context."""
        with self.changing:
            if self.users == 0:
                self.undo.enter_context(self.make())
            self.users += 1
        try:
            yield
        finally:
            with self.changing:
                self.users -= 1
                if self.users == 0:
                    self.undo.close()


@contextmanager
def without_flash() -> Iterator[None]:
    """Leave out PyTorch's fused kernel of attention, by :data:`NO_FLASH`."""
    before = ATTENTION.flash_sdp_enabled()
    ATTENTION.enable_flash_sdp(False)
    try:
        yield
    finally:
        ATTENTION.enable_flash_sdp(before)


@contextmanager
def without_other_kernels() -> Iterator[None]:
    """Leave out all other kernels of attention but plain products, by :data:`NO_OTHERS`."""
    before = ATTENTION.mem_efficient_sdp_enabled(), ATTENTION.cudnn_sdp_enabled(), ATTENTION.math_sdp_enabled()
    ATTENTION.enable_mem_efficient_sdp(False)
    ATTENTION.enable_cudnn_sdp(False)
    ATTENTION.enable_math_sdp(True)
    try:
        yield
    finally:
        ATTENTION.enable_mem_efficient_sdp(before[0])
        ATTENTION.enable_cudnn_sdp(before[1])
        ATTENTION.enable_math_sdp(before[2])


NO_FLASH, NO_OTHERS = Setting(without_flash), Setting(without_other_kernels)
EAGER = Setting(lambda: torch.compiler.set_stance("force_eager"))


def uncompiled() -> AbstractContextManager[None]:
    """Let compiled modules run as they were written: for every length of a batch they would be compiled anew."""
    return EAGER.taken() if "torch._dynamo" in sys.modules else nullcontext()
