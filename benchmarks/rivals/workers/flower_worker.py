"""Flower's simulation engine: its own FedAvg, one Ray actor a core.

To be started in an isolated network: Ray listens on every interface, also when told an address, and its dashboard
process asks cloud metadata servers where it is, also when usage statistics are off.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F

from benchmarks.rivals.common import Clock, answer, memory_bytes, workload

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """The local training of one client. The data stay in the actor's memory from one message to the next."""
    torch.set_num_threads(1)
    work = workload()
    s, samples = work.settings, torch.from_numpy(work.clients[int(context.node_config["partition-id"])])
    model = work.module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    optimiser = torch.optim.SGD(model.parameters(), lr=s["lr"], weight_decay=s["weight_decay"])
    for _ in range(s["local_epochs"]):
        for batch in samples[torch.randperm(len(samples))].split(s["batch_size"]):
            optimiser.zero_grad()
            F.cross_entropy(model(work.x_train[batch]), work.y_train[batch]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), s["clip"])
            optimiser.step()
    # Every client counts the same, as in the other ways.
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """Flower's FedAvg with a clock: a round lasts from the sampling of its cohort to the new global weights."""

    clock: Clock | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.clock = self.clock or Clock()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        if len(replies) != workload().settings["cohort"] or any(r.has_error() for r in replies):
            raise RuntimeError(f"round {server_round}: not every client answered")
        out = super().aggregate_train(server_round, replies)
        assert self.clock is not None
        self.clock.lap()
        return out


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    work = workload()
    clients, cohort = len(work.clients), work.settings["cohort"]
    strategy = Timed(cohort / clients, 0.0, min_train_nodes=cohort, min_available_nodes=clients)
    result = strategy.start(grid, ArrayRecord(work.start), num_rounds=work.rounds)  # type: ignore[arg-type]
    model = work.module()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    assert strategy.clock is not None
    answer(strategy.clock, model, ["flwr", "ray"], memory_bytes())


def main() -> None:
    random.seed(workload().settings["seed"])  # from this generator Flower draws its cohorts
    actors = 2
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(workload().clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": actors, "num_gpus": 0, "_node_ip_address": "127.0.0.1", "include_dashboard": False,
                "logging_level": "ERROR", "log_to_driver": False, "object_store_memory": 256 * 2**20,
                "_temp_dir": os.environ["RIVALS_RAY"],
            },
        },
    )  # type: ignore[arg-type]  # fmt: skip


if __name__ == "__main__":
    # Under this name, so that Ray's actors import the client instead of unpickling all of it.
    from benchmarks.rivals.workers import flower_worker

    flower_worker.main()
