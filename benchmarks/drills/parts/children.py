"""Work in forked children, that may be killed or stopped on the way."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError

SAID, FELL_OVER = 2, 3  # exit codes: an error of one line, and any other


def started(work: Callable[[], Any], said: Path) -> int:
    """Do some work in a forked child, which writes how it failed into a file; returns its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 0
    write = os.write
    try:
        work()
    except FedsmooError as e:
        code = SAID
        error = str(e)
    except BaseException as e:
        code = FELL_OVER
        where = traceback.extract_tb(e.__traceback__)[-1]
        error = f"{type(e).__name__}: {e} (in {where.name}, {Path(where.filename).name}:{where.lineno})"
    finally:
        if code:
            fd = os.open(said, os.O_WRONLY | os.O_CREAT)
            write(fd, error.encode("utf-8", "replace"))
        os._exit(code)
    raise AssertionError


def ended(pid: int) -> int:
    """Wait for a child; returns its exit code, less than zero for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
