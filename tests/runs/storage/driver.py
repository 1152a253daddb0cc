"""Runs killed by SIGKILL and resumed, in forked children; prints one line of JSON per method.

``python driver.py ENGINE FOLDER SEED METHOD:KILLS,...``. Half of the kills come exactly at an event, each in its turn:
before or after a round, in the middle of writing a file, before or after a flush, a rename, a removal. The others come
from outside, at any moment after such an event: the child says that it is there and goes on, but no further than some
events more, so that all kills come before the last round however busy the machine is.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from kinds import settings_of
from safetensors.torch import save

from fedsmoo.data.sources import load
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin import user_files
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage import checkpoint
from fedsmoo.runs.storage.names import METRICS, MODEL

KINDS = Path(__file__).parents[2] / "kinds.py"  # whose classes begin with a capital
EVENTS = {"advance": Simulation, "replace": os, "fsync": os, "unlink": Path}
ROUNDS = 3  # a kill: more than it takes
MOMENTS = ("within save_file", *(f"{when} {what}" for what in EVENTS for when in ("before", "after")))
LEASH = 20  # events: about one round with its checkpoint
TIMES = ("seconds_train", "seconds_eval")


class Countdown:
    """Does something at the n-th event of a name: kills this process, and says at which one."""

    def __init__(self, left: int, only: str, log: Path) -> None:
        self.left, self.only, self.log = left, only, log

    def __call__(self, name: str) -> None:
        self.left -= self.only in ("", name)
        if self.left == 0:
            self.act(name)

    def act(self, name: str) -> None:
        with self.log.open("a") as f:
            f.write(name + "\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: object, attribute: str) -> None:
        inner = getattr(owner, attribute)

        @functools.wraps(inner)
        def wrapped(*args, **kwargs):
            self(f"before {attribute}")
            result = inner(*args, **kwargs)
            self(f"after {attribute}")
            return result

        setattr(owner, attribute, wrapped)


class Notice(Countdown):
    """Tells the parent at the n-th event, which kills us when it comes to it; waits for that ``LEASH`` events later."""

    def __init__(self, left: int) -> None:
        self.left, self.only, self.told = left, "", False
        self.hears, self.says = os.pipe()

    def act(self, name: str) -> None:
        if self.told:
            signal.pause()
        os.write(self.says, b"!")
        self.left, self.told = LEASH, True

    def heard(self) -> bool:
        """Wait in the parent; false if the child ended before."""
        os.close(self.says)
        with os.fdopen(self.hears, "rb") as f:
            return f.read(1) != b""


def torn_save_file(events: Countdown):
    """``save_file`` that may be killed with half of the file written."""

    def save_file(tensors, path, metadata=None):
        data = save(tensors, metadata)
        with open(path, "wb") as f:
            f.write(data[: len(data) // 2])
            f.flush()
            events("within save_file")
            f.write(data[len(data) // 2 :])

    return save_file


def in_child(work, notice: Notice | None = None, delay: float = 0.0) -> bool:
    """Do some work in a forked child, killed some seconds after its notice; whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as e:
            sys.stderr.write(f"{type(e).__name__}: {e}\n")
            os._exit(3)
    if notice is not None and notice.heard():
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a child ended with {code}")
    return code == 0


def go_on(folder: Path, config: Config, every: int = 1) -> None:
    started = (folder / "config.toml").is_file()
    run = reopen(folder) if started else Run.begin(config, folder)
    run.go(save_every=every)


def go_on_until(folder: Path, config: Config, events: Countdown) -> None:
    for name, owner in EVENTS.items():
        events.around(owner, name)
    checkpoint.save_file = torn_save_file(events)
    go_on(folder, config)


def metrics(folder: Path) -> list[dict]:
    lines = [json.loads(x) for x in (folder / METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def state(folder: Path) -> dict[str, torch.Tensor]:
    saved, _ = checkpoint.newest(folder / "checkpoint")
    rows = {f"{c}.{n}": v for c, row in saved.rows() for n, v in row.items()}
    return {**dict(saved.server().items()), **rows}


def equal(a: Path, b: Path) -> bool:
    """Whether two runs left the same bits."""
    left, right = state(a), state(b)
    return (
        (a / MODEL).read_bytes() == (b / MODEL).read_bytes()
        and metrics(a) == metrics(b)
        and left.keys() == right.keys()
        and all(torch.equal(left[n], right[n]) for n in left)
    )


def main(engine: str, root: Path, seed: int, methods: list[str]) -> None:
    torch.set_num_threads(1)
    data = load("digits")
    data.fingerprint  # noqa: B018 (taken once)
    user_files.load = lambda *_: data  # read once, not in every child
    rng = np.random.default_rng(seed)
    go_on(root / "warm", Config(model="softmax", rounds=1, local_steps=1, engine=engine, device="cpu"))  # lazy imports
    os.fsync = os.fstat  # a kill, unlike a power cut, loses nothing that was written; so nobody waits for the disk
    gc.freeze()  # children need not copy what they never change
    moments = itertools.cycle(MOMENTS)
    for method, kills in ((name, int(times)) for name, _, times in (word.partition(":") for word in methods)):
        own = {"algorithm": f"{KINDS}:{method}", "holdout": 0.25} if method[0].isupper() else settings_of(method)
        own |= {"algorithm_options": {"head": "*bias"}} if method == "Heads" else {}
        config = Config(
            **own, model="softmax", clients=12, cohort=3, rounds=ROUNDS * kills, local_steps=2, batch_size=8,
            partition="dirichlet-0.5", engine=engine, device="cpu",
        )  # fmt: skip
        whole, killed, log = root / f"{method}-whole", root / f"{method}-killed", root / f"{method}.log"
        log.touch()
        in_child(lambda: go_on(whole, config, every=5))  # noqa: B023 (used at once)
        for kill in range(kills):
            if kill % 2:
                notice = Notice(int(rng.integers(1, 30)))
                delay = float(rng.uniform(0, 0.004))  # about as long as a round with its checkpoint
                done = in_child(lambda: go_on_until(killed, config, notice), notice, delay)  # noqa: B023
            else:
                events = Countdown(int(rng.integers(1, 3)), next(moments), log)
                done = in_child(lambda: go_on_until(killed, config, events))  # noqa: B023
            assert not done, "a run came to its end before its last kill"
        assert in_child(lambda: go_on(killed, config))  # noqa: B023
        seen, same = log.read_text().splitlines(), equal(whole, killed)
        print(json.dumps({"method": method, "kills": kills, "moments": seen, "equal": same}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
