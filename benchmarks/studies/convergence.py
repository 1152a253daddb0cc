"""Theorem 4.1 on a smooth problem: how the mean squared gradient norm falls with the number of rounds T.

A network with tanh on the digits, which is smooth and not convex, Dirichlet 0.1, full local gradients in float64. The
theorem bounds the mean over t = 1..T of ||f'(w_bar_t)||^2 by a constant over T if the radius is at most a constant over
sqrt(T); f is the mean of the clients' losses and w_bar_t the mean of the models that the cohort sent. So each T is a
run of its own with r = R / sqrt(T). Beside it a radius that stays, no radius (FedDyn), and FedAvg. Takes
two minutes on a CPU.

PYTHONPATH=src python -m benchmarks.studies.convergence --out results/convergence.json
PYTHONPATH=src python -m benchmarks.studies.convergence --draw docs/figures/convergence.svg    # from that file
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

import fedsmoo
from fedsmoo.runs.origin.provenance import code_facts
from fedsmoo.version import __version__

KEPT = Path(__file__).parents[2] / "results" / "convergence.json"
ROUNDS = (25, 50, 100, 200, 400)
RADIUS, BETA = 1.0, 1.0  # r = RADIUS / sqrt(T); the radius that stays is that of the shortest run
SETTINGS: dict[str, Any] = {
    "clients": 20, "cohort": 10, "partition": "dirichlet-0.1", "local_steps": 10, "batch_size": 100_000, "lr": 0.1,
    "lr_decay": 1.0, "weight_decay": 0.0, "clip": float("inf"), "augment": False, "eval_every": 100_000, "seed": 0,
    "device": "cpu", "dtype": "float64",
}  # fmt: skip
# What each line is called, the method, and its radius times sqrt(T); None: it stays, or there is none.
METHODS: dict[str, tuple[str, float | None]] = {
    "FedSMOO, r = 1 / sqrt(T)": ("fedsmoo", RADIUS),
    "FedSMOO, r = 0.2": ("fedsmoo", None),
    "FedDyn": ("feddyn", None),
    "FedAvg": ("fedavg", None),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def squared_norm(simulation: Any, w: torch.Tensor) -> float:
    """||f'(w)||^2 with f the mean over clients of the mean loss over their samples."""
    task = simulation.setup.task
    weight = torch.zeros(len(task.data.y_train), dtype=torch.float64)
    for mine in simulation.indices:  # with replacement a client may hold a sample several times
        weight.index_add_(0, torch.as_tensor(mine), torch.full((len(mine),), 1 / len(mine), dtype=torch.float64))
    held = weight > 0
    x, y = task.inputs(task.data.x_train[held]), task.data.y_train[held]
    parameters = {k: v.clone().requires_grad_() for k, v in task.model.state_dict(w).items()}
    each = nn.functional.cross_entropy(functional_call(network().double(), parameters, (x,)), y, reduction="none")
    found = torch.autograd.grad((weight[held] * each).sum() / len(simulation.indices), list(parameters.values()))
    return float(sum(g.square().sum() for g in found))


def norms(method: str, rounds: int, options: dict[str, Any]) -> list[float]:
    """The squared norms after each round, at the mean of the models that the cohort sent."""
    found: list[float] = []

    def after(record: Any, state: Any) -> None:
        server = state.simulation.server  # its step takes beta lam off the mean
        found.append(squared_norm(state.simulation, server.w + BETA * server.lam if "beta" in options else server.w))

    settings = {**SETTINGS, **options, "rounds": rounds}
    fedsmoo.simulate(network(), "digits", method, callback=after, progress=False, **settings)
    return found


def measure() -> dict[str, dict[str, Any]]:
    """For each method the means up to every T, the curve of its longest run and the fitted rate."""
    out: dict[str, dict[str, Any]] = {}
    for name, (method, radius) in METHODS.items():
        options: dict[str, Any] = {} if method == "fedavg" else {"beta": BETA}
        if radius is None:
            fixed = {**options, "r": RADIUS / math.sqrt(ROUNDS[0])} if method == "fedsmoo" else options
            curve = norms(method, ROUNDS[-1], fixed)
            means = [float(np.mean(curve[:rounds])) for rounds in ROUNDS]
        else:
            runs = [norms(method, rounds, {**options, "r": radius / math.sqrt(rounds)}) for rounds in ROUNDS]
            means, curve = [float(np.mean(run)) for run in runs], runs[-1]
        out[name] = {"means": means, "rate": rate(means), "curve": [float(f"{v:.6g}") for v in curve]}
        print(f"{name}: {' '.join(f'{m:.3g}' for m in means)}; T^{out[name]['rate']:.2f}", flush=True)
    return out


def rate(means: list[float]) -> float:
    """The exponent p of the T^p that fits the means best, by least squares of logarithms."""
    return float(np.polyfit(np.log(ROUNDS), np.log(means), 1)[0])


def draw(kept: dict[str, Any], path: Path) -> None:
    """Means over T on the left, norms over rounds on the right."""
    import matplotlib as mpl

    from fedsmoo.pages.figures.base import STYLE, Look, finish, legend
    from fedsmoo.pages.figures.draw import rendered
    from fedsmoo.pages.figures.rounds import style

    with mpl.rc_context(STYLE):
        figure = Look("page").figure(ratio=0.4)
        left, right = figure.subplots(1, 2)
        for k, (name, found) in enumerate(kept["methods"].items()):
            look = style((7, 3, 4, 0)[k])
            left.plot(kept["rounds"], found["means"], label=name, **look)
            right.plot(range(1, len(found["curve"]) + 1), found["curve"], **{**look, "marker": ""})
        first = kept["methods"][next(iter(METHODS))]["means"][0]
        bound = [first * kept["rounds"][0] / rounds for rounds in kept["rounds"]]
        left.plot(kept["rounds"], bound, color="0.4", linestyle=":", label="a constant over T")
        left.set(xscale="log", yscale="log", xlabel="rounds T", ylabel=r"mean over T rounds of $\|f'(\bar w)\|^2$")
        left.set_xticks(kept["rounds"], map(str, kept["rounds"]))
        left.minorticks_off()
        right.set(yscale="log", xlabel="round", ylabel=r"$\|f'(\bar w)\|^2$")
        for axes in (left, right):
            finish(axes)
        legend(figure, [left, right])
        path.write_bytes(rendered(figure, path.suffix))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="measure, and write what was found here")
    parser.add_argument("--draw", type=Path, help="draw results/convergence.json")
    given = parser.parse_args()
    if given.out:
        about = {"settings": {**SETTINGS, "clip": "inf"}, "beta": BETA, "radius": RADIUS, "rounds": ROUNDS}
        facts = {"fedsmoo": __version__, "torch": torch.__version__, **code_facts()}
        given.out.write_text(json.dumps({**about, **facts, "methods": measure()}, indent=1) + "\n")
    if given.draw:
        draw(json.loads(KEPT.read_text()), given.draw)


if __name__ == "__main__":
    main()
