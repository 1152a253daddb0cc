"""Pieces of a distributed round, measured: seconds of local training by clients per rank, and of one all-reduce.

python -m benchmarks.cpu.ranks train            # one process, on its device
torchrun --nproc-per-node=2 -m benchmarks.cpu.ranks reduce
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.distributed.engine import owners
from fedsmoo.engines.distributed.ranks import join, own_device
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config

COUNTS = (1, 2, 3, 4, 5, 10, 20)


def images(n: int = 50_000) -> Dataset:
    """Random 32x32 pictures: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, n))
    return Dataset("random", x, y, x[:1000], y[:1000], 10, (0.5,) * 3, (0.25,) * 3, augment=True)


def train(rounds: int = 4) -> None:
    data = images()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for cohort in COUNTS:
        config = Config(
            algorithm="fedsmoo", model="resnet18_gn", clients=100, cohort=cohort, rounds=rounds, local_epochs=5,
            partition="iid", eval_every=rounds, device=device, engine="batched", precision="tf32",
        )  # fmt: skip
        history = assemble(config, data=data).run().history
        best = min(r.seconds_train for r in history[1:])
        print(json.dumps({"clients": cohort, "seconds": round(best, 4), "first": round(history[0].seconds_train, 2)}))


def reduce(numbers: int = 8_460_000, repeat: int = 10) -> None:
    """``numbers``: FedSMOO's two vectors of ResNet-18-GN's live weights."""
    device = own_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    ranks = join(device)
    v = torch.ones(numbers, device=device)
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        ranks.all_reduce(v)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    if ranks.rank == 0:
        facts = {"ranks": ranks.world, "backend": ranks.backend, "numbers": numbers, "seconds": round(min(times), 4)}
        print(json.dumps(facts))


def largest_share(cohort: int, clients: int, ranks: int, stateful: bool = True, draws: int = 2000) -> float:
    """The expected number of clients on the busiest rank."""
    rng, every = np.random.default_rng(0), np.arange(clients)
    sizes = [
        np.bincount(owners(rng.choice(every, cohort, replace=False).tolist(), ranks, stateful), minlength=ranks).max()
        for _ in range(draws)
    ]
    return float(np.mean(sizes))


def round_seconds(measured: dict[str, float], cohort: int, clients: int, ranks: int, bandwidth: float, **how) -> float:
    """Training by the busiest rank, and a ring all-reduce of FedSMOO's two vectors over links of ``bandwidth`` B/s."""
    counts = sorted((int(c), t) for c, t in measured.items())
    (a, ta), (b, tb) = counts[-2:]
    share = largest_share(cohort, clients, ranks, **how)
    known = np.interp(share, [c for c, _ in counts], [t for _, t in counts])
    training = known if share <= b else tb + (share - b) * (tb - ta) / (b - a)
    traffic = 2 * 4_230_000 * 4 * 2 * (ranks - 1) / ranks
    return float(training + traffic / bandwidth)


if __name__ == "__main__":
    {"train": train, "reduce": reduce}[sys.argv[1]]()
