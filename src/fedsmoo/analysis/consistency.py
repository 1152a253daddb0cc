"""Measure consistency: how far clients agree in their duals, their perturbations and the way they pull."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from fedsmoo.analysis.measurement import Measurement, Moment, Subject, Values
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.hyper.options import option

RADIUS = 0.1  # of a method that perturbs nothing


@dataclass(frozen=True)
class ConsistencyMeasurement(Measurement):
    """Dual gaps of all clients, and how far clients' perturbations are from the global one.

    Perturbations are those of so many clients, the first that were met. A method whose clients keep no vectors has
    nothing to measure.
    """

    name = "consistency"
    help = "Dual gaps of all clients, and perturbations of the first clients met, from the newest checkpoint."
    columns = ("value",)
    nothing = "the clients of {algorithm} keep no vectors"
    all_clients = True

    radius: float | None = option(None, "length of the perturbation (default: the run's own)")
    clients: int = option(20, "clients whose perturbations are taken", within="(0, inf)")

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.consistency import agreed_perturbation, client_losses, dual_gaps, perturbations

        method = run.algorithm
        r = (RADIUS if method.radius is None else method.radius) if self.radius is None else self.radius
        if not 0 < r < math.inf:
            raise FedsmooError(f"{run.path}: a radius of {r:g} is no unit of distance: say one above 0 with --radius")
        server, rows = run.vectors()
        if not rows:
            return {}
        met = sorted(rows)[: self.clients]
        s, duals = agreed_perturbation(method, server, [rows[i] for i in met])
        out: Values = {f"dual_gap_{n}": v for n, v in dual_gaps(server, rows, len(run.indices)).items()}
        found = perturbations(client_losses(run.task, run.indices, met), server.w, r, s, duals)
        out |= {f"perturbation_distance_{n}": v for n, v in found.items()}
        return {**out, "clients_met": len(rows), "clients_taken": len(met), "radius": r}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        return [[f"{name}: {k}", f"{v:.4g}"] for k, v in values.items()]

    @classmethod
    def probe(cls, now: Moment) -> dict[str, float]:
        """Measure whether the round's clients, sent the new model, would pull the same way, and the duals balance."""
        from fedsmoo.analysis.functions import consistency

        work = dataclasses.replace(now.work, down=now.setup.masks.sent(now.work.algorithm, now.server))
        gaps = consistency.dual_gaps(now.server, dict(now.table.items()), len(now.indices))
        out = {f"dual_gap_{n}": v for n, v in gaps.items()}
        if work.clients:
            models = consistency.client_models(now.setup, now.table, work)
            losses = consistency.client_losses(now.setup.task, now.indices, work.clients)
            out["cosine"] = consistency.cosines(models - work.down.w)["pairwise"]
            out["perturbation_distance"] = consistency.perturbations(losses, now.server.w, RADIUS)["mean"]
        return out
