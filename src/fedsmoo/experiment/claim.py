"""Who works on a run: a file beside it, so that processes that share a folder do nothing twice.

The file is created exclusively, names its owner and is touched every few seconds. A claim is dead when its process is
(on this machine), or when it was not touched for a while (on another). Taking over a dead one is guarded by a lock on
the folder, or two processes could each remove the other's new claim.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError

CLAIM, LOCK = ".claim", ".lock"
BEAT, SILENCE = 5.0, 120.0  # seconds between touches; seconds after which another machine's claim is dead


class Claim:
    """A run that this process works on; released by ``release`` or by the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)
        self.thread.start()

    def _beat(self) -> None:
        while not self.done.wait(BEAT):
            with suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        self.done.set()
        self.thread.join()
        self.path.unlink(missing_ok=True)


def claim(folder: Path) -> Claim | None:
    """The claim on a run folder, or ``None`` if somebody else is at work there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise FedsmooError(f"cannot write the run folder {folder}: {e.strerror}") from e
    path = folder / CLAIM
    if path.exists() and not dead(path):
        return None
    with locked(folder):
        if path.exists():
            if not dead(path):
                return None
            path.unlink(missing_ok=True)
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return None
        with os.fdopen(fd, "w") as f:
            json.dump(me(), f)
    return Claim(path)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Alone at work on a run, or a line that says who is."""
    held = claim(folder)
    if held is None:
        raise FedsmooError(
            f"another process is at work on {folder}: wait for it, or stop it first; nothing was changed"
        )
    try:
        yield
    finally:
        held.release()


def me() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "born": born(os.getpid())}


def born(pid: int) -> str | None:
    """When a process of this machine started, where the system says so: a number may be given out again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def dead(path: Path) -> bool:
    """Whether a claim's owner is gone."""
    try:
        owner = json.loads(path.read_text())
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # being written at this moment, or torn by a crash
        with suppress(OSError):
            return time.time() - path.stat().st_mtime > SILENCE
        return True
    if owner.get("host") != socket.gethostname():
        return age > SILENCE
    return not alive(owner.get("pid", -1), owner.get("born"))


def alive(pid: int, birth: str | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return birth is None or born(pid) in (None, birth)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone in a folder, among processes that ask; a killed process leaves no lock behind."""
    try:
        import fcntl
    except ImportError:  # no such locks here: taking over dead claims is then not guarded
        yield
        return
    with (folder / LOCK).open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
