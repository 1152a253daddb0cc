"""Flower's programs as processes on the loopback interface, each ended by its own id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .conftest import OFFLINE

SOURCE = Path(__file__).parents[2] / "src"
BIN = Path(sys.executable).parent


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


def end_those_of(folder: Path) -> None:
    """End what our programs left behind: processes whose command line or Flower home names a folder of this test."""
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if str(folder).encode() in words:
                os.kill(int(entry.name), signal.SIGTERM)


def wait_for(true: Callable[[], bool], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.1)
