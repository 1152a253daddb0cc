"""Waiting for conditions, never for the clock: how busy the machine is must not decide a test."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")
PATIENCE = 300.0  # seconds: a safety net that only a defect should ever reach


def wait_for(true: Callable[[], Value], what: str, seconds: float = PATIENCE, pause: float = 0.02) -> Value:
    """Wait until a function returns something true, and return that."""
    until = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}"
        time.sleep(pause)
    return value


def read_if_there(path: Path) -> str:
    """A file that another process may be about to write or to remove; empty if it is not there."""
    with suppress(FileNotFoundError):
        return path.read_text()
    return ""


def json_if_there(path: Path) -> dict[str, Any]:
    """The same as JSON; empty, too, while it is half written."""
    with suppress(ValueError):
        return json.loads(read_if_there(path))
    return {}


@contextmanager
def ended(*processes: subprocess.Popen[Any]) -> Iterator[None]:
    """Whatever happens within this, the processes are ended and waited for when it is left."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
