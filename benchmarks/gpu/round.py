r"""Seconds of a round: the paper's CIFAR-10 round (ResNet-18-GN, 100 clients of 500 samples, 10 in a round, batch 50,
5 epochs), for any method, precision, cohort, and number of seeds in one batch. One JSON line per measurement.

PYTHONPATH=src python3 -m benchmarks.gpu.round --methods fedavg,scaffold,fedsmoo --out round.json
PYTHONPATH=src python3 -m benchmarks.gpu.round --methods fedsmoo --seeds 4 --out seeds.json
PYTHONPATH=src python3 -m benchmarks.gpu.round --methods fedavg,scaffold,fedsmoo --precision tf32 --met --rounds 7 \
    --commit "$(git rev-parse HEAD)" --out results/gpu/round_tf32.json    # at the precision of the authors' code
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.client_state.memory import release
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation
from fedsmoo.sweeps.pack import Pack
from fedsmoo.version import __version__


def noise(classes: int = 10, train: int = 50_000, test: int = 10_000) -> Dataset:
    """Images of the size of CIFAR-10; what they show does not change the time."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (train + test, 32, 32, 3), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(classes, size=train + test))
    mean, std = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    return Dataset("noise", x[:train], y[:train], x[train:], y[train:], classes, mean, std, augment=True)


def meet_everybody(simulation: Simulation) -> None:
    """Give every client a row, as late in a run, when all have been met."""
    names, size = simulation.setup.algorithm.own, simulation.setup.task.model.layout.size
    zeros = torch.zeros(size, device=simulation.setup.task.device)
    for i in range(len(simulation.indices)):
        row = {n: zeros.clone() for n in names}  # a row of its own on the device, a copy elsewhere
        simulation.engine.table.load(i, row)


def measure(
    config: Config, data: Dataset, samples: int, seeds: int, rounds: int, met: bool, profiled: bool
) -> dict[str, Any]:
    """Median seconds of training and evaluation over some rounds, after the first (which compiles)."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        release()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    rng = np.random.default_rng(1)
    indices = [rng.integers(len(data.x_train), size=samples) for _ in range(config.clients)]
    simulations = [assemble(config.replace(seed=s), data=data, indices=indices) for s in range(seeds)]
    for s in simulations if met else []:
        meet_everybody(s)
    pack = Pack(simulations)
    going = list(range(seeds))
    pack.advance(going)
    first = time.perf_counter() - began
    train, evaluate = [], []
    for _ in range(rounds):
        records = pack.advance(going)
        train.append(sum(r.seconds_train for r in records))
        evaluate.append(sum(r.seconds_eval for r in records))
    peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None
    steps = config.epochs * -(-samples // config.batch_size)
    kernels = {"kernels_per_step": by_kernel(pack, going, steps)} if profiled else {}
    stepper = getattr(simulations[0].engine, "stepper", None)
    return kernels | {
        "algorithm": config.algorithm,
        "seconds_per_round": statistics.median(train),
        "seconds_per_round_all": train,
        "seconds_evaluation": statistics.median(evaluate),
        "seconds_to_first_round": first,
        "peak_memory_gb": peak,
        "engine": simulations[0].engine.name,
        "compiled": getattr(stepper, "compile", None),
        "captured": getattr(stepper, "capture", None),
        "settings": {
            "model": config.model, "clients": config.clients, "cohort": config.cohort, "seeds": seeds,
            "batch_size": config.batch_size, "local_epochs": config.epochs, "precision": config.precision,
            "samples_per_client": len(simulations[0].indices[0]), "table": config.table,
            "everybody_met": met,
        },
    }  # fmt: skip


def repeated(times: int, *args: Any) -> dict[str, Any]:
    """A measurement with buffers made anew each time: where they happen to lie is worth a few per cent."""
    found = [measure(*args) for _ in range(times)]
    train = [t for r in found for t in r["seconds_per_round_all"]]
    evaluate = statistics.median(r["seconds_evaluation"] for r in found)
    whole = {"seconds_per_round": statistics.median(train), "seconds_per_round_all": train, "repeats": times}
    return found[-1] | whole | {n: found[0][n] for n in ("seconds_to_first_round",)} | {"seconds_evaluation": evaluate}


def by_kernel(pack: Pack, going: list[int], steps: int) -> dict[str, dict[str, float]]:
    """Microseconds and launches of one local step by kernel, largest first, from a profile of one round."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        pack.advance(going)
        torch.cuda.synchronize()
    sums: dict[str, list[float]] = {}
    for e in profiler.events():
        if e.device_type == torch.autograd.DeviceType.CUDA:
            entry = sums.setdefault(e.name[:80], [0.0, 0])
            entry[0], entry[1] = entry[0] + e.time_range.elapsed_us(), entry[1] + 1
    per_step = {n: {"us": round(t / steps, 2), "launches": round(c / steps, 2)} for n, (t, c) in sums.items()}
    return dict(sorted(per_step.items(), key=lambda item: -item[1]["us"]))


def line(r: dict[str, Any]) -> str:
    s = r["settings"]
    return (
        f"{r['algorithm']:10s} {s['precision']} n={s['cohort']:<4d} seeds={s['seeds']}  "
        f"{r['seconds_per_round']:.4f} s/round  eval {r['seconds_evaluation']:.4f}  "
        f"first {r['seconds_to_first_round']:.1f} s  "
        f"peak {r['peak_memory_gb'] or 0:.1f} GB  {r['engine']} compiled={r['compiled']} captured={r['captured']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", default="fedavg,scaffold,fedsmoo")
    parser.add_argument("--model", default="resnet18_gn")
    parser.add_argument("--precision", default="bf16", help="several, separated by commas")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", default="10", help="several, separated by commas")
    parser.add_argument("--seeds", default="1", help="runs in one batch; several, separated by commas")
    parser.add_argument("--samples", type=int, default=500, help="per client")
    parser.add_argument("--table", default="auto", help="where client state lives")
    parser.add_argument("--met", action="store_true", help="start with a row for every client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=1, help="measure so many times, each with new buffers")
    parser.add_argument("--profile", action="store_true", help="add the time of a local step by kernel")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    data = noise()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu"
    results = []
    for method in args.methods.split(","):
        for precision in args.precision.split(","):
            for cohort in map(int, args.cohort.split(",")):
                for seeds in map(int, args.seeds.split(",")):
                    config = Config(
                        algorithm=method, model=args.model, clients=args.clients, cohort=cohort, precision=precision,
                        rounds=args.rounds + 1, batch_size=50, local_epochs=5,
                        engine="batched", table=args.table,
                    )  # fmt: skip
                    result = repeated(
                        args.repeat, config, data, args.samples, seeds, args.rounds, args.met, args.profile
                    )  # fmt: skip
                    result |= {"hardware": device, "commit": args.commit,
                               "versions": {"fedsmoo": __version__, "torch": torch.__version__}}  # fmt: skip
                    results.append(result)
                    args.out.write_text(json.dumps(results, indent=1))
                    print(line(result), flush=True)


if __name__ == "__main__":
    main()
