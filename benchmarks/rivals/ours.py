"""The batched engine, or the plain loop of benchmarks/cpu.py on the same batches, in a process of its own."""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import Clock, answer, memory_bytes, workload
from cpu import plain_round

from fedsmoo.data.dataset import Dataset
from fedsmoo.models import wrap
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation


def simulation(engine: str) -> Simulation:
    work = workload()
    s = work.settings
    config = Config(
        algorithm="fedavg", engine=engine, device="cpu", clients=len(work.clients), cohort=s["cohort"],
        rounds=work.rounds, local_epochs=s["local_epochs"], batch_size=s["batch_size"], lr=s["lr"], lr_decay=1.0,
        weight_decay=s["weight_decay"], clip=s["clip"], seed=s["seed"], eval_every=10**6,
    )  # fmt: skip
    data = Dataset("digits", work.x_train, work.y_train, work.x_test, work.y_test, classes=10)
    return assemble(config, data=data, model=wrap(work.module(), data), indices=work.clients)


def batched() -> None:
    run = simulation("batched")
    clock = Clock()
    for _ in range(workload().rounds):
        run.advance()
        clock.lap()
    answer(clock, run.setup.task.model.export(run.server.w), [], memory_bytes())


def plain() -> None:
    """The cohorts and batches are those of our own run; drawing them is inside the time, as it is for the engine."""
    run, model = simulation("serial"), workload().module()
    s, data = run.training, run.setup.task.data
    clock = Clock()
    for t in range(workload().rounds):
        _, plan = run.draw_round(t)
        model = plain_round(model, data, plan, s.lr, s.weight_decay, s.clip or np.inf)
        clock.lap()
    answer(clock, model, [], memory_bytes())


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"batched": batched, "plain": plain}[sys.argv[1]]()
