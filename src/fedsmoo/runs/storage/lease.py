"""Leases: a file in a run folder says which process works on it, so that two that share a folder do nothing twice.

The file is created exclusively, names its owner and is touched every few seconds. A lease is dead when its process is
(on this machine), or when it was not touched for a while (on another). Taking over a dead one is guarded by a lock on
the folder, or two processes could each remove the other's new lease. A process that was only paused finds another
token in the file than its own when it wakes, and leaves the run alone.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.runs.storage.files import DiskError, reason

LEASE, LOCK = ".claim", ".lock"  # files in a run folder
BEAT, SILENCE = 5.0, 120.0  # seconds between touches; seconds after which another machine's lease is dead


class Lease:
    """A run that this process works on, until ``release`` or the end of the process."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)
        self.thread.start()

    def _beat(self) -> None:
        while not self.done.wait(BEAT) and self.ours():
            with suppress(OSError):
                os.utime(self.path)

    def ours(self) -> bool:
        """Return whether this process still holds the lease: another may have thought it dead and taken over."""
        try:
            return owner_of(self.path).get("token") == self.token
        except (FileNotFoundError, ValueError):
            return False
        except OSError:  # the disk does not answer, so nobody else can have taken over either
            return True

    def release(self) -> None:
        self.done.set()
        self.thread.join()
        with suppress(OSError), locked(self.path.parent):
            if self.ours():
                self.path.unlink(missing_ok=True)


def acquire(folder: Path) -> Lease | None:
    """Take the lease on a run folder, or return ``None`` if another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _acquire(folder)
    except OSError as e:
        raise DiskError(f"cannot write the run folder {folder}: {reason(e)}") from e


def _acquire(folder: Path) -> Lease | None:
    path = folder / LEASE
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
        token = secrets.token_hex(8)
        with os.fdopen(fd, "w") as f:
            json.dump({**me(), "token": token}, f)
    return Lease(path, token)


@contextmanager
def leased(folder: Path) -> Iterator[Lease]:
    """Hold the lease on a run folder; ``FedsmooError`` if another process does."""
    held = acquire(folder)
    if held is None:
        raise FedsmooError(
            f"another process is at work on {folder}: wait for it, or stop it first; nothing was changed"
        )
    try:
        yield held
    finally:
        held.release()


def me() -> dict[str, Any]:
    return {"pid": os.getpid(), **here(), "born": born(os.getpid())}


def here() -> dict[str, str | None]:
    """Return what names this machine and its process numbers: containers and clones may share a host's name."""
    boot = space = None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "space": space}


def owner_of(path: Path) -> dict[str, Any]:
    """Read who holds a lease; ``ValueError`` if the file does not say (yet)."""
    owner = json.loads(path.read_text())
    if not isinstance(owner, dict):
        raise ValueError(f"{path} is not a lease")
    return owner


def born(pid: int) -> str | None:
    """Return when a process of this machine started, where the system says so: process numbers are used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def dead(path: Path) -> bool:
    """Return whether the process that holds a lease is gone."""
    try:
        owner = owner_of(path)
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # being written at this moment, or torn by a crash
        with suppress(OSError):
            return time.time() - path.stat().st_mtime > SILENCE
        return True
    if any(owner.get(k) != v for k, v in here().items()):
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
    """Hold an exclusive lock on a folder; it ends with the process."""
    try:
        import fcntl
    except ImportError:  # no such locks here: taking over dead leases is then not guarded
        yield
        return
    with (folder / LOCK).open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
