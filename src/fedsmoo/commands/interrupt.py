"""Ctrl-C before there is anything to save: end. During a run, once: finish the round; twice: stop at once."""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager, nullcontext

from fedsmoo.runs.signals import Interrupt, deferred_interrupt, handled_by

SAVING = "\nfinishing this round and saving; press Ctrl-C again to stop at once\n"


def interruptible() -> AbstractContextManager[Interrupt]:
    """Within this, let the first Ctrl-C only set a flag, and say so; the second raises ``KeyboardInterrupt``."""
    return deferred_interrupt(lambda: sys.stderr.write(SAVING))


def nothing_to_save() -> AbstractContextManager[None]:
    """Within this, let Ctrl-C end the program without a word, unless it was told to do otherwise or to ignore it."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return handled_by(signal.SIG_DFL, [signal.SIGINT]) if usual else nullcontext()
