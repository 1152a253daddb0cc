"""A job on the command line: a lost rank ends it in words, and it goes on with another number of ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from forked import Forked
from patience import PATIENCE
from safetensors.torch import load_file

from fedsmoo.cli import main
from fedsmoo.runs.storage.reader import read_run

from .launch import Meeting, environment, there

ROUNDS = 20
SETTINGS = {
    "algorithm": "fedsmoo", "dataset": "digits", "model": "softmax", "clients": 9, "cohort": 4, "rounds": ROUNDS,
    "local_epochs": 1, "lr": 0.05, "device": "cpu", "seed": 3, "eval_every": 10,
}  # fmt: skip
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


# ``fedsmoo`` whose rank 1 is killed or stopped at the beginning of its eighth round: two jobs at once, whose ranks are
# forked from one process that has paid for the imports.
LOST = """
import json, os, signal, sys
import safetensors.torch, sklearn.datasets, torch._dynamo, torch.distributed  # what takes long to import
import fedsmoo.compiler, fedsmoo.runs.run
from fedsmoo.cli import main
from fedsmoo.runs.simulation import Simulation

advance = Simulation.advance

def rank_of(number, job, words):
    child = os.fork()
    if child:
        return child
    os.environ.update(job["environment"], RANK=str(number), LOCAL_RANK=str(number))
    os.dup2(os.open(f"{job['folder']}.{number}", os.O_CREAT | os.O_WRONLY), 2)

    def fatal(self):
        if len(self.history) == 7 and number == 1:
            os.kill(os.getpid(), getattr(signal, job["signal"]))
        return advance(self)

    Simulation.advance = fatal
    main([*words, "--out", job["folder"]])

jobs = json.loads(sys.argv[1])
for job in jobs:
    job["processes"] = [rank_of(number, job, sys.argv[2:]) for number in range(job["ranks"])]
for job in jobs:
    codes = []
    for process in job["processes"]:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        if len(codes) == 1:  # rank 0 has ended, and said of whom it heard nothing
            for other in job["processes"][1:] if job["signal"] == "SIGSTOP" else ():
                os.kill(other, signal.SIGKILL)
    job["codes"] = codes
print(json.dumps(jobs))
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A job of three ranks of which one is killed, one of two of which one is stopped, and what each rank says."""
    root, meetings = tmp_path_factory.mktemp("job"), [Meeting(), Meeting()]
    asked = []
    for meeting, ranks, way in zip(meetings, (3, 2), ("SIGKILL", "SIGSTOP"), strict=True):
        env = {**there(meeting.port, ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        env |= {"FEDSMOO_RANK_TIMEOUT": "8"} if way == "SIGSTOP" else {}
        asked.append({"ranks": ranks, "signal": way, "folder": str(root / way), "environment": env})
    words = [sys.executable, "-c", LOST, json.dumps(asked), "run", *FLAGS, "--exact", "true", "--save-every", "1"]
    process = Forked(words, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out = process.communicate(timeout=PATIENCE)[0]
    finally:
        with suppress(ProcessLookupError):  # whoever is left, such as a rank that was stopped
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = {job["signal"]: job for job in json.loads(out.splitlines()[-1])}
    for way, job in found.items():
        job["said"] = [Path(f"{root / way}.{number}").read_text() for number in range(job["ranks"])]
        job["rounds"] = (root / way / "metrics.jsonl").read_text().count("\n")
    return found


def test_a_killed_rank_ends_the_job_in_words(jobs):
    job = jobs["SIGKILL"]
    text = job["said"][0]
    assert job["rounds"] == 7
    assert job["codes"] == [2, -signal.SIGKILL, 2]
    assert "rank 0 of 3: another rank of this job was lost" in text
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


def test_a_stopped_rank_is_named_and_the_run_goes_on_with_fewer(jobs, alone):
    """It breaks no connection: the others used to wait for it for half an hour."""
    job = jobs["SIGSTOP"]
    folder, text = Path(job["folder"]), job["said"][0]
    assert job["codes"][0] == 2
    who = f"rank 1 on {socket.gethostname()}, process {job['processes'][1]}"
    assert f"fedsmoo: rank 0 of 2: nothing was heard of {who} for 8 s: stopped, or cut off." in text
    assert "fedsmoo resume" in text
    assert "Traceback" not in text
    assert job["rounds"] == 7
    with pytest.raises(SystemExit, match="0"):
        main(["resume", str(folder)])
    assert same_bits(folder, alone) == ROUNDS


def test_it_goes_on_with_another_number_of_ranks_to_the_same_bits(jobs, alone):
    folder = Path(jobs["SIGKILL"]["folder"])
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--local-addr=127.0.0.1"]
    command = [sys.executable, *torchrun, "-m", "fedsmoo", "resume", str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1, "only rank 0 prints"
    assert same_bits(folder, alone) == ROUNDS
    assert json.loads((folder / "summary.json").read_text())["ranks"] == 2
