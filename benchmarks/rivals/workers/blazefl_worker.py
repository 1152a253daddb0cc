"""BlazeFL: its server and its trainers of threads, processes or none, with the data in memory.

Usage: blazefl_worker.py threads|processes|one. Its own ``train`` knows neither clip nor decay, so it is given ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import blazefl.contrib.fedavg as theirs
import torch
import torch.multiprocessing as mp
from blazefl.core import IPCMode, deserialize_model, serialize_model
from torch import Tensor, nn

from benchmarks.rivals.common import Clock, answer, memory_bytes, workload


class Name(StrEnum):
    """The one model there is."""

    NET = "net"


class Select:
    """What BlazeFL asks for a network."""

    def select_model(self, model_name: str) -> nn.Module:
        return workload().module()


class Shuffled:
    """A client's batches in a new order every epoch."""

    def __init__(self, cid: int, size: int, generator: torch.Generator | None) -> None:
        x, y = held()
        self.dataset, self.size, self.generator = cid, size, generator
        self.at = torch.from_numpy(workload().clients[cid]).to(x.device)
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.at), generator=self.generator).to(self.at.device)
        for batch in self.at[order].split(self.size):
            yield self.x[batch], self.y[batch]


class InMemory:
    """What BlazeFL asks for the clients' data."""

    def get_dataloader(self, type_: str, cid: int, batch_size: int, generator: torch.Generator | None) -> Shuffled:
        return Shuffled(cid, batch_size, generator)

    def set_dataset(self, type_: str, cid: int, dataset: Any) -> None: ...


HELD: list[tuple[Tensor, Tensor]] = []


def held() -> tuple[Tensor, Tensor]:
    """The training part on the device; once in a process."""
    if not HELD:
        torch.set_num_threads(1)
        importlib.import_module("torch._dynamo")  # which optimisers need: else every new process imports it again
        work = workload()
        HELD.append((work.inputs(work.x_train), work.y_train.to(work.device)))
    return HELD[0]


def train(
    model: nn.Module, model_parameters: Tensor, train_loader: Shuffled, device: str, epochs: int, lr: float,
    stop_event: Any, cid: int,
) -> Any:  # fmt: skip
    """Their loop with clip, decay and precision; every client counts the same, as in the other ways."""
    work = workload()
    model.to(device)
    deserialize_model(model, model_parameters)
    model.train()
    optimiser = work.optimiser(model.parameters())
    for _ in range(epochs):
        for x, y in train_loader:
            work.step(model, optimiser, x, y)
    kind = theirs.FedAvgUplinkPackage if KIND == "threads" else theirs.FedAvgProcessPoolUplinkPackage
    return kind(cid, serialize_model(model), 1)


KIND = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RIVALS_BLAZEFL", "processes")
theirs.FedAvgProcessPoolClientTrainer.train = staticmethod(train)  # type: ignore[assignment]
theirs.FedAvgThreadPoolClientTrainer.train = staticmethod(train)  # type: ignore[assignment,method-assign]


def trainer(parallel: int) -> Any:
    s, folder = workload().settings, Path(os.environ["RIVALS_FOLDER"])
    common = {
        "model_selector": Select(), "model_name": Name.NET, "dataset": InMemory(), "device": s["device"],
        "num_clients": s["clients"], "epochs": s["local_epochs"], "batch_size": s["batch_size"], "lr": s["lr"],
        "seed": s["seed"], "num_parallels": parallel,
    }  # fmt: skip
    if KIND == "threads":
        return theirs.FedAvgThreadPoolClientTrainer(**common)
    paths = {"share_dir": folder / "share", "state_dir": folder / "state"}
    return theirs.FedAvgProcessPoolClientTrainer(**common, **paths, ipc_mode=IPCMode.SHARED_MEMORY)


def main() -> None:
    work = workload()
    s = work.settings
    os.environ["RIVALS_BLAZEFL"] = KIND  # for children that start anew
    if s["device"] == "cuda":
        mp.set_start_method("spawn")
    held()
    handler = theirs.FedAvgBaseServerHandler(
        Select(), Name.NET, InMemory(), work.rounds, s["clients"], s["cohort"] / s["clients"], s["device"],
        s["batch_size"], s["seed"],
    )  # fmt: skip
    handler.model.load_state_dict(work.start)
    clients = trainer(s.get("parallel", 2))
    clock = Clock()
    while not handler.if_stop():
        clients.local_process(handler.downlink_package(), handler.sample_clients())
        for package in clients.uplink_package():
            handler.load(package)
        clock.lap()
    answer(clock, handler.model, ["blazefl"], memory_bytes())


if __name__ == "__main__":
    main()
