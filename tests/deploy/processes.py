"""Flower's programs as processes on the loopback interface, each ended by its own id."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from patience import PATIENCE

from .conftest import OFFLINE

SOURCE = Path(__file__).parents[2] / "src"
BIN = Path(sys.executable).parent
PR_SET_CHILD_SUBREAPER = 36


def free_ports(n: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def environment(home: Path, **extra: str) -> dict[str, str]:
    """Offline, one thread, our own Flower home, and the programs of this interpreter's environment first."""
    home.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    mine = {"FLWR_HOME": str(home), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **OFFLINE, **mine, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **extra}


def run(command: list[str | Path], env: dict[str, str], timeout: float, cwd: Path | None = None) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(
        [str(c) for c in command], env=env, cwd=cwd, timeout=timeout, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}:\n{done.stdout[-6000:]}"
    return done.stdout


def end(process: subprocess.Popen, grace: float = 10) -> None:
    """End a process that we started, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def family(grace: float = 10) -> Iterator[None]:
    """Ends every process that was started within this, and what those started, by their ids; nobody else.

    Flower's programs start others in sessions of their own and leave them behind. An orphan becomes the child of its
    nearest ancestor that asks for it, which we do: whatever descends from us and did not before is of this family.
    """
    before = descendants(os.getpid())
    adopt_orphans(True)
    try:
        yield
    finally:
        end_all(lambda: descendants(os.getpid(), before), grace)
        adopt_orphans(False)


def adopt_orphans(yes: bool) -> None:
    """Become the parent of descendants whose parent ended; where the system has no such thing, they are left."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def descendants(pid: int, but: Collection[int] = ()) -> set[int]:
    """The ids of the processes below one, without those below ``but``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found: set[int] = set()
    left = [pid]
    while left:
        new = {c for c in children.get(left.pop(), ()) if c not in but}
        found |= new
        left += new
    return found


def end_all(ids: Callable[[], set[int]], grace: float) -> None:
    """Ask processes to end, wait, and end those that did not; ``ids`` says which are left."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, PATIENCE)):
        told: set[int] = set()
        until = time.monotonic() + patience
        while (left := ids()) and time.monotonic() < until:
            for pid in left:
                with suppress(ProcessLookupError):
                    if pid not in told:
                        os.kill(pid, number)
                with suppress(ChildProcessError):  # not our own child: its parent hears of its end
                    os.waitpid(pid, os.WNOHANG)
            told |= left
            time.sleep(0.05)
