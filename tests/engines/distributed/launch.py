"""Starts the ranks of a small job on the loopback interface, without a launcher, and collects what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE
from torch.distributed import TCPStore

HERE = Path(__file__).parent
SOURCE = Path(__file__).parents[3] / "src"


class Meeting:
    """Where ranks meet: a store of this process, on a port that the system chose and nobody can take meanwhile."""

    def __init__(self) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    @property
    def port(self) -> str:
        return str(self.store.port)


def there(port: str, world: int) -> dict[str, str]:
    """What tells ``world`` ranks of a meeting, as ``torchrun`` does: none of them is to open a store of its own."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {**place, "WORLD_SIZE": str(world), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def environment(**extra: str) -> dict[str, str]:
    """The environment of a rank: one thread, loopback only."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **extra}


def start(meeting: Meeting, world: int, *command: str | Path) -> list[subprocess.Popen[str]]:
    """``world`` processes of one job, each a ``python COMMAND``."""
    common = there(meeting.port, world)
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


def finish(ranks: list[subprocess.Popen[str]], timeout: float = PATIENCE) -> list[tuple[int, str]]:
    """Exit status and standard error of each rank; whoever is left over at the end is ended by its id."""
    try:
        out = [rank.communicate(timeout=timeout)[1] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, out, strict=True)]
