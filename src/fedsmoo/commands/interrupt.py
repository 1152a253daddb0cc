"""Ctrl-C once: finish the round. Twice: stop at once."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from fedsmoo.runs.signals import Interrupt, deferred_interrupt

SAVING = "\nfinishing this round and saving; press Ctrl-C again to stop at once\n"


def interruptible() -> AbstractContextManager[Interrupt]:
    """Within this, let the first Ctrl-C only set a flag, and say so; the second raises ``KeyboardInterrupt``."""
    return deferred_interrupt(lambda: sys.stderr.write(SAVING))
