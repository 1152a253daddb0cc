"""Starts the ranks of a small job on the loopback interface, without a launcher, and collects what they say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = Path(__file__).parents[2] / "src"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment(**extra: str) -> dict[str, str]:
    """The environment of a rank: one thread, loopback only."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **extra}


def start(world: int, *command: str | Path) -> list[subprocess.Popen[str]]:
    """``world`` processes of one job, each a ``python COMMAND``."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=environment(RANK=str(r), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(world), **common),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world)
    ]


def finish(ranks: list[subprocess.Popen[str]], timeout: float = 120) -> list[tuple[int, str]]:
    """Exit status and standard error of each rank; whoever is left over at the end is ended by its id."""
    try:
        out = [rank.communicate(timeout=timeout)[1] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, out, strict=True)]
