"""Ranks 0 .. N-1 of a job for each N asked for, forked from one process that has paid for the imports once."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cases import SMALL, outcome, save_all
from launch import free_port

path, worlds = sys.argv[1], [int(n) for n in sys.argv[2:]]
outcome(SMALL.replace(rounds=1))  # whatever is imported late is imported now
for world in worlds:
    os.environ.update(WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            save_all(f"{path}.{world}.{rank}")
            sys.exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(f"a rank of {world} failed")
