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

import numpy as np
import torch
from torch import Tensor

from fedsmoo.analysis.functions.objective import Objective
from fedsmoo.core import Algorithm, Vectors, unit
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
    out, setup = [], dataclasses.replace(setup, algorithm=work.algorithm)
    for c, client in enumerate(work.clients):
        own = table.read([client], setup.algorithm.first_contact(work.down)).map(lambda v: v[0])
        w, _, _, _ = train_client(setup, work.down, own, work.plan.select(slice(c, c + 1)), work.round_of(c))
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


def agreed_perturbation(
    method: Algorithm, server: Vectors, rows: Sequence[Mapping[str, Tensor]]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the perturbation that clients are to agree on and their duals of it ``[n, P]``, if the method has some."""
    agreed = [pair for row in rows if (pair := method.agreement(server, Vectors(**row))) is not None]
    return (agreed[0][0], torch.stack([dual for _, dual in agreed])) if agreed else (None, None)


def client_losses(task: Task, indices: Sequence[np.ndarray], clients: Sequence[int]) -> list[Objective]:
    """Return each client's loss on its own samples."""
    held = [task.pick(torch.from_numpy(indices[i])) for i in clients]
    return [Objective(task, x, y.to(task.device), "train") for x, y in held]
