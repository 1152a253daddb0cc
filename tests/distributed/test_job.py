"""A job on the command line: a lost rank ends it in words, and it goes on with another number of ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from fedsmoo.experiment.runfolder import read_run

from .launch import environment, finish, free_port, start

pytestmark = pytest.mark.xdist_group("job")  # all in one process: the fixtures take long

ROUNDS = 120
SETTINGS = {
    "algorithm": "fedsmoo", "dataset": "digits", "model": "softmax", "clients": 9, "cohort": 4, "rounds": ROUNDS,
    "local_epochs": 1, "lr": 0.05, "device": "cpu", "seed": 3, "eval_every": 40,
}  # fmt: skip
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def rounds_in(folder) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """A job of two ranks of which one is killed, and what the other says."""
    folder = tmp_path_factory.mktemp("job") / "run"
    job = start(2, "-m", "fedsmoo", "run", *FLAGS, "--exact", "true", "--save-every", "1", "--out", folder)
    until = time.monotonic() + 100
    while rounds_in(folder) < 5 and all(rank.poll() is None for rank in job) and time.monotonic() < until:
        time.sleep(0.01)
    job[1].send_signal(signal.SIGKILL)
    ends = finish(job)
    return folder, ends, rounds_in(folder)


def test_a_killed_rank_ends_the_job_in_words(lost):
    _, ends, rounds = lost
    code, text = ends[0]
    assert 5 <= rounds < ROUNDS
    assert code == 2
    assert "rank 0 of 2: another rank of this job was lost" in text
    assert "fedsmoo resume" in text
    assert "Traceback" not in text


def test_it_goes_on_with_another_number_of_ranks_to_the_same_bits(lost, tmp_path):
    folder, _, rounds = lost
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=3", "--master-addr=127.0.0.1"]
    command = [sys.executable, *torchrun, f"--master-port={free_port()}", "-m", "fedsmoo", "resume", str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1, "only rank 0 prints"
    alone = tmp_path / "alone"
    command = [sys.executable, "-m", "fedsmoo", "run", *FLAGS, "--engine", "serial", "--out", str(alone)]
    subprocess.run(command, env=environment(), check=True, capture_output=True, timeout=200)
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, alone))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
    history, expected = (read_run(path)[1] for path in (folder, alone))
    assert len(history) == ROUNDS > rounds
    assert [(r.train_loss, r.drift, r.test_loss) for r in history] == [
        (r.train_loss, r.drift, r.test_loss) for r in expected
    ]
    assert json.loads((folder / "summary.json").read_text())["ranks"] == 3
