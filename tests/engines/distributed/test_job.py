"""A job on the command line: a lost rank ends it in words, and it goes on with another number of ranks."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest
import torch
from patience import PATIENCE
from safetensors.torch import load_file

from fedsmoo.cli import main
from fedsmoo.runs.storage.reader import read_run

from .launch import Meeting, environment, finish, start

ROUNDS = 20
SETTINGS = {
    "algorithm": "fedsmoo", "dataset": "digits", "model": "softmax", "clients": 9, "cohort": 4, "rounds": ROUNDS,
    "local_epochs": 1, "lr": 0.05, "device": "cpu", "seed": 3, "eval_every": 10,
}  # fmt: skip
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


# ``fedsmoo`` whose rank 1 is killed or stopped at the beginning of its eighth round.
LOST = """
import os, signal, sys
from fedsmoo.cli import main
from fedsmoo.runs.simulation import Simulation

advance = Simulation.advance

def fatal(self):
    if len(self.history) == 7 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return advance(self)

Simulation.advance = fatal
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """A job of two ranks of which one is killed, and what the other says."""
    folder, meeting = tmp_path_factory.mktemp("job") / "run", Meeting()
    words = ["SIGKILL", "run", *FLAGS, "--exact", "true", "--save-every", "1", "--out", folder]
    ends = finish(start(meeting, 2, "-c", LOST, *words))
    return folder, ends, (folder / "metrics.jsonl").read_text().count("\n")


def test_a_killed_rank_ends_the_job_in_words(lost):
    _, ends, rounds = lost
    code, text = ends[0]
    assert rounds == 7
    assert ends[1][0] == -signal.SIGKILL
    assert code == 2
    assert "rank 0 of 2: another rank of this job was lost" in text
    assert f"says why): rank 1 on {socket.gethostname()}, process " in text
    assert "fedsmoo resume" in text
    assert "Traceback" not in text


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same run, undisturbed in one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    with pytest.raises(SystemExit, match="0"):
        main(["run", *FLAGS, "--engine", "serial", "--out", str(folder)])
    return folder


def same_bits(folder, other):
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, other))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
    history, expected = (read_run(path).history for path in (folder, other))
    assert [(r.train_loss, r.drift, r.test_loss) for r in history] == [
        (r.train_loss, r.drift, r.test_loss) for r in expected
    ]
    return len(history)


def test_a_stopped_rank_is_named_and_the_run_goes_on_with_fewer(tmp_path, alone, monkeypatch):
    """It breaks no connection: the others used to wait for it for half an hour."""
    folder, meeting = tmp_path / "run", Meeting()
    monkeypatch.setenv("FEDSMOO_RANK_TIMEOUT", "8")
    words = ["SIGSTOP", "run", *FLAGS, "--exact", "true", "--save-every", "1", "--out", folder]
    first, stopped = start(meeting, 2, "-c", LOST, *words)
    try:
        text = first.communicate(timeout=PATIENCE)[1]
    finally:
        for rank in (first, stopped):
            rank.kill()
            rank.wait()
    assert first.returncode == 2
    who = f"rank 1 on {socket.gethostname()}, process {stopped.pid}"
    assert f"fedsmoo: rank 0 of 2: nothing was heard of {who} for 8 s: stopped, or cut off." in text
    assert "fedsmoo resume" in text
    assert "Traceback" not in text
    assert (folder / "metrics.jsonl").read_text().count("\n") == 7
    with pytest.raises(SystemExit, match="0"):
        main(["resume", str(folder)])
    assert same_bits(folder, alone) == ROUNDS


def test_it_goes_on_with_another_number_of_ranks_to_the_same_bits(lost, alone):
    folder, _, rounds = lost
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=3", "--standalone", "--local-addr=127.0.0.1"]
    command = [sys.executable, *torchrun, "-m", "fedsmoo", "resume", str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1, "only rank 0 prints"
    assert same_bits(folder, alone) == ROUNDS > rounds
    assert json.loads((folder / "summary.json").read_text())["ranks"] == 3
