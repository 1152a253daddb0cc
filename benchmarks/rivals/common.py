"""What the workers share: the workload from a file, a clock, an answer as JSON. Needs torch and numpy alone."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rivals import nets


@dataclass(frozen=True)
class Workload:
    """The data, who holds which samples, the first weights, and the numbers of the run.

    Images are bytes, ``[N, H, W, channels]``; ``inputs`` makes of them what a network takes.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    clients: list[np.ndarray]
    start: dict[str, Tensor]
    settings: dict[str, Any]

    @property
    def rounds(self) -> int:
        return self.settings["warm_up"] + self.settings["rounds"]

    @property
    def scored(self) -> int:
        """After which round the model is scored: the last, unless a way is timed in more rounds than others."""
        return min(self.rounds, self.settings.get("scored", self.rounds))

    @property
    def device(self) -> torch.device:
        return torch.device(self.settings["device"])

    @property
    def steps(self) -> int:
        """How many steps a client makes in a round; all clients have as many samples, or as many batches of them."""
        return self.settings["local_epochs"] * -(-len(self.clients[0]) // self.settings["batch_size"])

    def inputs(self, x: Tensor) -> Tensor:
        """Return samples as a network takes them: images normalised, channels first."""
        if x.dtype != torch.uint8:
            return x.to(self.device)
        mean, std = (torch.tensor(self.settings[n], device=self.device) for n in ("mean", "std"))
        return ((x.to(self.device) / 255 - mean) / std).movedim(-1, 1).contiguous()

    def module(self) -> nn.Module:
        """Return a fresh network with the first weights, on the device."""
        s = self.settings
        shape = tuple(self.x_train.shape[1:])
        model = nets.build(s["net"], shape if self.x_train.dim() < 4 else (shape[-1], *shape[:-1]), s["classes"])
        model.load_state_dict(self.start)
        return model.to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which forward passes have the precision of the run."""
        if self.settings["precision"] == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)  # weights change every step
        return nullcontext()

    def optimiser(self, parameters: Any, lr: float | None = None) -> torch.optim.Optimizer:
        s = self.settings
        return torch.optim.SGD(parameters, lr=lr or s["lr"], weight_decay=s["weight_decay"])

    def step(self, model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        """Take a step of a client as anybody would write it."""
        optimiser.zero_grad()
        with self.autocast():
            out = model(x)
        F.cross_entropy(out.float(), y).backward()
        if self.settings["clip"] is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.settings["clip"])
        optimiser.step()


@cache
def workload() -> Workload:
    """The workload that an environment variable names, with a way's own settings of another; read once in a process."""
    with np.load(os.environ["RIVALS_WORKLOAD"]) as f:
        arrays = dict(f)
    clients = np.split(arrays["samples"], arrays["ends"][:-1])
    start = {n.removeprefix("start."): torch.from_numpy(a) for n, a in arrays.items() if n.startswith("start.")}
    data = {n: torch.from_numpy(arrays[n]) for n in ("x_train", "y_train", "x_test", "y_test")}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # unless a run is of full precision
    settings = json.loads(str(arrays["settings"])) | json.loads(os.environ.get("RIVALS_SETTINGS", "{}"))
    return Workload(**data, clients=clients, start=start, settings=settings)


def use_threads(most: int = 2) -> None:
    """One thread for the smallest network, whose products are not worth sharing, else both cores."""
    torch.set_num_threads(1 if workload().settings["net"] == "mlp" else most)


class Clock:
    """The lengths of rounds, from the moment it is made.

    After the rounds that warm up it waits for its turn, where ways that start side by side are timed one at a time.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.begin()

    def begin(self) -> None:
        """Go on from now: what went before does not count."""
        self.finish()
        self.last = time.perf_counter()

    def finish(self) -> None:
        if workload().device.type == "cuda":
            torch.cuda.synchronize()

    def lap(self) -> None:
        self.finish()
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        if len(self.seconds) == workload().settings["warm_up"]:
            wait_for_turn()
        self.last = time.perf_counter()


def wait_for_turn() -> None:
    """Say that this process is warm and wait until it is told to go on, if it is one of several side by side."""
    folder = os.environ.get("RIVALS_TURNS")
    if folder:
        Path(folder, "ready").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.05)


@torch.no_grad()
def score(model: nn.Module) -> dict[str, float]:
    """Accuracy and loss on the test part."""
    work = workload()
    model = model.to(work.device).eval()
    right, loss = 0, 0.0
    for x, y in zip(work.x_test.split(1000), work.y_test.split(1000), strict=True):
        out = model(work.inputs(x)).float()
        y = y.to(work.device)
        right, loss = right + int((out.argmax(1) == y).sum()), loss + float(F.cross_entropy(out, y, reduction="sum"))
    return {"test_accuracy": right / len(work.y_test), "test_loss": loss / len(work.y_test)}


def load_vision() -> None:
    """Import torchvision, also where its compiled part is of another build: images need none of it."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            LIBRARIES[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


LIBRARIES: list[torch.library.Library] = []  # a declaration ends with its object


def descendants(pid: int) -> list[int]:
    """A process and all that came from it and are still there."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has just ended
    found = [pid]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found


def memory_bytes() -> int | None:
    """Memory of this process and all it started, shared pages counted once; none where the system does not say."""
    total = 0
    try:
        for pid in descendants(os.getpid()):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    except (OSError, StopIteration):
        return None
    return total


def answer(clock: Clock, model: nn.Module, packages: list[str], memory: int | None = None, **more: Any) -> None:
    """Write what was measured where the environment variable says."""
    work = workload()
    if len(clock.seconds) != work.rounds:
        raise SystemExit(f"{len(clock.seconds)} rounds were timed, but {work.rounds} asked for")
    out = {
        "seconds_per_round": clock.seconds,
        **score(model),
        "memory_bytes": memory,
        "versions": {p: version(p) for p in packages} | {"torch": torch.__version__},
        **more,
    }
    Path(os.environ["RIVALS_ANSWER"]).write_text(json.dumps(out))
