"""A federation told again in one process: the same rounds, with whoever really took part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedsmoo.core import Round, Vectors
from fedsmoo.engines.contract import RoundInputs
from fedsmoo.engines.serial import Serial
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config


def replayed(config: Config, rounds: list[dict]) -> Vectors:
    """The server's vectors after rounds with these accepted clients, by the serial engine."""
    simulation = assemble(config.replace(engine="serial"))
    engine = Serial(simulation.setup)
    server, m = simulation.server, len(simulation.indices)
    for number, report in enumerate(rounds):
        algorithm = simulation.setup.algorithm.at(number)
        clients = report["accepted"]
        if report["skipped"] or not clients:
            continue
        lr, share = config.lr * config.lr_decay**number, len(clients) / m
        sizes = np.array([len(simulation.indices[i]) if config.weighted else 1 for i in clients], float)
        plan = simulation.plan(number, clients)
        weights = (sizes / sizes.sum()).tolist()
        work = RoundInputs(number, algorithm.sent(server), clients, plan, lr, share, weights, algorithm)
        mean = engine.run_round(work).mean
        server = algorithm.aggregate(server, mean, Round(number, lr, float(plan.steps.mean()), share))
    return server


def reports(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
