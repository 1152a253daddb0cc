"""Ranks 0 .. N-1 of a job for each ``N:PORT`` asked for, forked from one process that has paid for the imports once."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from cases import BY_FILE, SMALL, outcome, save_all
from launch import there

path, jobs = sys.argv[1], [word.split(":") for word in sys.argv[2:]]
for config in (SMALL, *BY_FILE.values()):  # what is imported late, and a user's file checked, is so now
    outcome(config.replace(rounds=1, exact=False))
for world, port in ((int(n), port) for n, port in jobs):
    os.environ.update(there(port, world))
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            save_all(f"{path}.{world}.{rank}", world)
            sys.exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(f"a rank of {world} failed")
