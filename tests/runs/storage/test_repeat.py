"""The same command gives the same bits, however busy the machine is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RUNS = 8  # at once: they keep one another waiting

# Imports once, and then runs the command line in processes of their own; nothing has used a thread before they part.
START = """
import os, sys
import safetensors.torch, sklearn.datasets, torch._dynamo  # what takes long to import
import fedsmoo.compiler, fedsmoo.runs.run
from fedsmoo.cli import main

def begin(work):
    child = os.fork()
    if child == 0:
        work()
    return child

children = [begin(lambda: main(["run", "--out", str(n), "--save-every", "0", *sys.argv[2:]]))
            for n in range(int(sys.argv[1]))]
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_eight_runs_of_the_default_command_on_a_busy_machine_are_one_model(tmp_path: Path) -> None:
    """With as many threads as there are by default, and with whatever engine is chosen by default."""
    plain = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    plain["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that wait in turns: it only makes the test shorter
    words = [sys.executable, "-c", START, str(RUNS), "--rounds", "2", "--local-steps", "4", "--device", "cpu"]
    done = subprocess.run(words, env=plain, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    models = {(tmp_path / str(n) / "model.safetensors").read_bytes() for n in range(RUNS)}
    assert len(models) == 1
    told = {line for line in done.stdout.splitlines() if line.startswith("  engine  ")}
    assert len(told) == 1  # the same engine, clients at once and threads, for the same reason
