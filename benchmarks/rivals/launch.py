"""Start the processes of a worker, side by side, in a network that is nothing but a loopback interface.

Usage: launch.py isolated|open PROCESSES COMMAND... (isolated: below `unshare --net`, whose loopback is still down)
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
FIRST_PORT = 29500  # nobody else is in this network


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))
    if len(Path("/proc/net/route").read_text().splitlines()) > 1:
        raise SystemExit("this network has a way out, but a worker must not reach beyond its machine")


def environment(rank: int, processes: int) -> dict[str, str]:
    mine = {"RIVALS_ANSWER": os.path.join(os.environ["RIVALS_FOLDER"], f"answer-{rank}.json")}
    if processes > 1:
        addresses = ",".join(f"127.0.0.1:{FIRST_PORT + r}" for r in range(processes))
        mine |= {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)}
    return {**os.environ, **mine}


def main() -> None:
    network, processes, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if network == "isolated":
        raise_loopback()
    started = [subprocess.Popen(command, env=environment(r, processes)) for r in range(processes)]
    raise SystemExit(max(abs(p.wait()) for p in started))


if __name__ == "__main__":
    main()
