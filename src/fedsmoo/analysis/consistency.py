"""How far clients agree: drift, duals, perturbations and the directions in which they pull.

In the ADMM view of FedDyn and FedSMOO the constraint is ``w_i = w`` with multipliers ``lam_i``:

    primal residual   sqrt(mean ||w_i - w||^2)          how far the constraint is from holding
    dual residual     ||w_new - w_old|| / beta          how far the consensus still moves
    dual gap          ||lam - mean over all clients lam_i||   zero in exact arithmetic: the server's lam is that mean

Reference: Boyd et al., "Distributed optimization and statistical learning via ADMM", 2011, section 3.3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsmoo.analysis.measurement import Measurement, Moment, Subject, Values
from fedsmoo.analysis.objective import Objective
from fedsmoo.core import FedsmooError, Round, Vectors, option, unit
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import RoundInputs, Setup
from fedsmoo.engines.serial import train_client
from fedsmoo.engines.task import Task


def dual_gaps(server: Vectors, rows: Mapping[int, Mapping[str, Tensor]], clients: int) -> dict[str, float]:
    """``||v - mean_i v_i||`` for every vector that the server and the clients both keep under one name.

    The mean is over all clients; one that was never met holds zero. Errors of rounding that either side feeds back
    (``err_...``) share a name but are no multipliers: each side has its own, and they are left out.
    """
    out = {}
    for name, mine in server.items():
        theirs = [row[name] for row in rows.values() if name in row]
        if name != "w" and not name.startswith("err_") and theirs:
            total = torch.zeros_like(mine)
            for row in theirs:  # one at a time: all of them may not fit on the device
                total += row.to(mine)
            out[name] = (mine - total / clients).norm().item()
    return out


def residuals(models: Tensor, before: Tensor, after: Tensor, beta: float) -> dict[str, float]:
    """Return a round's primal and dual residual, from the clients' models ``[n, P]`` and the global ones around it."""
    return {
        "primal": math.sqrt((models - after).square().sum(1).mean().item()),
        "dual": (after - before).norm().item() / beta,
    }


def client_models(setup: Setup, table: ClientTable, work: RoundInputs) -> Tensor:
    """Return the models ``[n, P]`` that a cohort's clients would reach in a round; nothing is kept of it."""
    out = []
    for c, client in enumerate(work.clients):
        own = table.read([client], setup.algorithm.first_contact(work.down)).map(lambda v: v[0])
        rnd = Round(work.number, work.lr, int(work.plan.steps[c]), work.share)
        w, _, _, _ = train_client(setup, work.down, own, work.plan.select(slice(c, c + 1)), rnd)
        out.append(w)
    return torch.stack(out)


def cosines(updates: Tensor) -> dict[str, float]:
    """Return the mean cosine between two clients' updates ``[n, P]``, and of an update with the cohort's mean."""
    n = len(updates)
    directions = unit(updates)
    pairs = directions @ directions.T
    apart = (pairs.sum() - pairs.diagonal().sum()) / (n * (n - 1)) if n > 1 else torch.ones(())
    return {"pairwise": apart.item(), "with_mean": (directions @ unit(updates.mean(0))).mean().item()}


def perturbations(
    objectives: Sequence[Objective], w: Tensor, r: float, s: Tensor | None = None, duals: Tensor | None = None
) -> dict[str, float]:
    """Return the distance of the clients' perturbations from the global one, in units of the radius r.

    A client's perturbation is ``r unit(f_i'(w) - mu_i - s)`` (FedSMOO; with ``duals`` [n, P] and ``s``), or SAM's own
    ``r unit(f_i'(w))``. The global one is s, or ``r unit`` of the mean gradient.
    """
    gradients = torch.stack([f.gradient(w) for f in objectives])
    corrected = gradients if duals is None or s is None else gradients - duals - s
    local = r * unit(corrected)
    common = r * unit(gradients.mean(0)) if s is None else s
    return {
        "mean": (local - common).norm(dim=1).mean().item() / r,
        "max": (local - common).norm(dim=1).max().item() / r,
    }


RADIUS = 0.1  # of a method that perturbs nothing


def client_losses(task: Task, indices: Sequence[np.ndarray], clients: Sequence[int]) -> list[Objective]:
    """Return each client's loss on its own samples."""
    held = [torch.from_numpy(indices[i]).to(task.device) for i in clients]
    return [Objective(task, task.data.x_train[i], task.data.y_train[i], "train") for i in held]


@dataclass(frozen=True)
class ConsistencyMeasurement(Measurement):
    """Dual gaps of all clients, and how far clients' perturbations are from the global one.

    Perturbations are those of so many clients, the first that were met. A method whose clients keep no vectors has
    nothing to measure.
    """

    name = "consistency"
    help = "Dual gaps of all clients, and perturbations of the first clients met, from the newest checkpoint."
    columns = ("value",)
    all_clients = True

    radius: float | None = option(None, "length of the perturbation (default: the run's own)")
    clients: int = option(20, "clients whose perturbations are taken", within="(0, inf)")

    def measure(self, run: Subject, *others: Subject) -> Values:
        method = run.algorithm
        r = (RADIUS if method.radius is None else method.radius) if self.radius is None else self.radius
        if not 0 < r < math.inf:
            raise FedsmooError(f"{run.path}: a radius of {r:g} is no unit of distance: say one above 0 with --radius")
        server, rows = run.vectors()
        if not rows:
            return {}
        met = sorted(rows)[: self.clients]
        agreed = [method.agreement(server, Vectors(**rows[i])) for i in met]
        s, duals = None, None
        if agreed[0] is not None:
            s, duals = agreed[0][0], torch.stack([pair[1] for pair in agreed if pair is not None])
        out: Values = {f"dual_gap_{n}": v for n, v in dual_gaps(server, rows, len(run.indices)).items()}
        found = perturbations(client_losses(run.task, run.indices, met), server.w, r, s, duals)
        out |= {f"perturbation_distance_{n}": v for n, v in found.items()}
        return {**out, "clients_met": len(rows), "clients_taken": len(met), "radius": r}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        return [[f"{name}: {k}", f"{v:.4g}"] for k, v in values.items()]

    @classmethod
    def probe(cls, now: Moment) -> dict[str, float]:
        """Measure whether the round's clients, sent the new model, would pull the same way, and the duals balance."""
        work = dataclasses.replace(now.work, down=now.setup.algorithm.sent(now.server))
        gaps = dual_gaps(now.server, dict(now.table.items()), len(now.indices))
        out = {f"dual_gap_{n}": v for n, v in gaps.items()}
        if work.clients:
            models = client_models(now.setup, now.table, work)
            losses = client_losses(now.setup.task, now.indices, work.clients)
            out["cosine"] = cosines(models - work.down.w)["pairwise"]
            out["perturbation_distance"] = perturbations(losses, now.server.w, RADIUS)["mean"]
        return out
