"""Leases: a file in a run folder says which process works on it, so that two that share a folder do nothing twice.

The file appears whole, names its owner and is touched every few seconds. A lease is dead when its process is or its
machine was started anew (on this one), when it was not touched for a while (on another), or when it names nobody. To
take it is guarded by a lock on the folder, and counts the folder's epoch up: the number of owners it has had, kept in
the lock's file and written into every checkpoint. A process that was only paused finds another token in the file than
its own when it wakes: what it was about to rename, append or remove in the folder it leaves alone (see ``fence.py``).
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.runs.storage.fence import PART, Fence
from fedsmoo.runs.storage.files import DiskError, make_folder, parse_table, read_plain, reason
from fedsmoo.runs.storage.manifest import epoch_of, manifests_in
from fedsmoo.runs.storage.names import CHECKPOINT

LEASE, LOCK = ".claim", ".lock"  # files in a run folder
BEAT, SILENCE = 5.0, 120.0  # seconds between touches; seconds after which another machine's lease is dead
GRACE = 2.0  # seconds after which a file that names no owner is taken for one that never will
SKEW = 60.0  # seconds that clocks of machines may differ
PATIENCE = 2.0  # seconds to wait for the lock before the folder counts as somebody else's
LARGEST_PID, LARGEST_EPOCH, LARGEST_FILE = 2**31 - 1, 2**62, 2**16
TAKEN = "another process took this run over while this one was silent; it ends here"


class TakenOver(FedsmooError):
    """Another process owns the run by now: nothing more may be written into its folder."""


class NoOwner(ValueError):
    """A lease's file names no process: torn by a crash, or not written by fedsmoo."""


class Lease(Fence):
    """A run that this process works on, until ``release`` or the end of the process."""

    def __init__(self, path: Path, token: str, epoch: int) -> None:
        self.path, self.token, self.epoch = path, token, epoch
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
        except (FileNotFoundError, NoOwner):
            return False
        except OSError:  # the disk does not answer, so nobody else can have taken over either
            return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder's lock as its owner; ``TakenOver`` if that is another process by now."""
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.path.parent))
            except OSError as e:
                raise DiskError(f"cannot lock the run folder {self.path.parent}: {reason(e)}") from e
            if not self.ours():
                raise TakenOver(f"{self.path.parent}: {TAKEN}")
            yield

    def release(self) -> None:
        self.done.set()
        self.thread.join()
        with suppress(OSError), locked(self.path.parent, PATIENCE):
            if self.ours():
                self.path.unlink(missing_ok=True)


@contextmanager
def unless_taken(lease: Lease | None) -> Iterator[None]:
    """Raise ``TakenOver`` for whatever goes wrong once another process owns the run: that is why."""
    try:
        yield
    except FedsmooError as e:
        if lease is None or isinstance(e, TakenOver) or lease.ours():
            raise
        raise TakenOver(f"{lease.path.parent}: {TAKEN}") from e


def acquire(folder: Path) -> Lease | None:
    """Take the lease on a run folder, or return ``None`` if another process holds it."""
    try:
        make_folder(folder)
        return _acquire(folder)
    except OSError as e:
        raise DiskError(f"cannot write the run folder {folder}: {reason(e)}") from e


def _acquire(folder: Path) -> Lease | None:
    path = folder / LEASE
    if not is_abandoned(path) or (from_the_future(path) and touched_meanwhile(path)):
        return None
    try:
        with locked(folder, PATIENCE) as lock:
            if not is_abandoned(path):
                return None
            token, epoch = secrets.token_hex(8), count_up(folder, lock)
            remove_leftovers(folder)
            path.unlink(missing_ok=True)
            create(path, json.dumps({**me(), "token": token, "epoch": epoch}))
    except (BlockingIOError, FileExistsError):  # its owner writes, or was paused while it wrote; others were faster
        return None
    return Lease(path, token, epoch)


def create(path: Path, text: str) -> None:
    """Write a new file that is never seen half written; ``FileExistsError`` if there is one."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        part.write_text(text)
        try:
            os.link(part, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links: the folder's lock has to do
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def count_up(folder: Path, lock: int | None) -> int:
    """Return the epoch of the next owner of a folder, whose lock is held, and keep it there on the disk."""
    before = [epoch_of(path) for path in manifests_in(folder / CHECKPOINT)]
    with suppress(OSError, NoOwner):
        before.append(owner_of(folder / LEASE).get("epoch", 0))
    if lock is not None:
        with suppress(ValueError):
            before.append(int(os.pread(lock, 32, 0)))
    epoch = 1 + max((n for n in before if type(n) is int and 0 < n < LARGEST_EPOCH), default=0)
    if lock is not None:
        os.pwrite(lock, f"{epoch:020d}\n".encode(), 0)  # in place: always as long, so that it is never half there
        os.fsync(lock)
    return epoch


def remove_leftovers(folder: Path) -> None:
    """Remove files that earlier owners had not finished writing."""
    for part in [*folder.glob("*" + PART), *folder.glob("*/*" + PART)]:
        with suppress(OSError):
            part.unlink()


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
    return {"pid": os.getpid(), **machine_id(), "born": process_start(os.getpid())}


def machine_id() -> dict[str, str | None]:
    """Return what names this machine and its process numbers: containers and clones may share a host's name."""
    boot = space = None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "space": space}


def owner_of(path: Path) -> dict[str, Any]:
    """Read who holds a lease; ``NoOwner`` if the file does not say, ``OSError`` if it cannot be read."""
    try:
        content = read_plain(path, links=False, limit=LARGEST_FILE)
        if content is None:
            raise FileNotFoundError(path)
        return parse_table(content, path)
    except FedsmooError as e:
        if isinstance(e.__cause__, OSError) and e.__cause__.errno != errno.ELOOP:
            raise e.__cause__ from None
        raise NoOwner(str(e)) from e


def process_start(pid: int) -> str | None:
    """Return when a process of this machine started, where the system says so: process numbers are used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def is_abandoned(path: Path) -> bool:
    """Return whether there is no process that holds a lease, or none any more; ``OSError`` if that cannot be seen."""
    try:
        age = time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return True
    try:
        owner = owner_of(path)
        pid = owner.get("pid")
        if type(pid) is not int or not 0 < pid <= LARGEST_PID:
            raise NoOwner(f"{path} names the process {pid!r}")
    except FileNotFoundError:
        return True
    except NoOwner:  # older versions wrote it in two steps: it may be in between
        return abs(age) > GRACE
    except OSError:
        return age > SILENCE
    if any(owner.get(k) != v for k, v in machine_id().items()):
        return not -SKEW <= age <= SILENCE or of_an_earlier_boot(owner, time.time() - age)
    return not is_alive(pid, owner.get("born"))


def of_an_earlier_boot(owner: dict[str, Any], touched: float) -> bool:
    """Return whether a lease is of this machine before it was started anew, as after a power cut.

    Another machine may have this one's name; but its lease, if its process lives, was touched since.
    """
    mine, boot, start = machine_id(), owner.get("boot"), boot_time()
    same = owner.get("host") == mine["host"] and isinstance(boot, str) and boot != mine["boot"]
    return same and start is not None and touched < start


def boot_time() -> float | None:
    """Return when this machine was started, in seconds since 1970, where the system says so."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None


def from_the_future(path: Path) -> bool:
    """Return whether a file's time is later than clocks may differ."""
    with suppress(OSError):
        return path.lstat().st_mtime > time.time() + SKEW
    return False


def touched_meanwhile(path: Path) -> bool:
    """Wait a little longer than owners take to touch their file; whether one did. Its clock may be wrong."""
    with suppress(OSError):
        before = path.lstat().st_mtime_ns
        time.sleep(BEAT + GRACE)
        return path.lstat().st_mtime_ns != before
    return False


def is_alive(pid: int, birth: str | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return birth is None or process_start(pid) in (None, birth)


@contextmanager
def locked(folder: Path, patience: float | None = None) -> Iterator[int | None]:
    """Hold an exclusive lock on a folder, which ends with the process; yields the lock's open file.

    Waits for it, with ``patience`` for so many seconds: then raises ``BlockingIOError``.
    """
    try:
        import fcntl
    except ImportError:  # no such locks here: taking over dead leases is then not guarded
        yield None
        return
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        end = time.monotonic() + (patience or 0.0)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if patience is None else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
        yield lock
    finally:
        os.close(lock)
