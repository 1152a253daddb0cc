"""Measure what a private run has spent: epsilon at a delta, by the number of rounds."""

from __future__ import annotations

from dataclasses import dataclass

from fedsmoo.analysis.measurement import Measurement, Subject, Values
from fedsmoo.core import FedsmooError
from fedsmoo.core.hyper.options import option


@dataclass(frozen=True)
class PrivacyMeasurement(Measurement):
    """The epsilon of client-level differential privacy that a run has spent, and had spent after each tenth of it."""

    name = "privacy"
    help = "Differential privacy spent: epsilon at a delta."
    columns = ("epsilon", "delta", "noise", "rounds", "clients")
    nothing = "the run is not private (--privacy client is)"

    delta: float = option(1e-5, "the chance at which epsilon does not hold; below 1 / clients", within="(0, 1)")

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.privacy import epsilon_spent, private_part

        method, clients, cohort, rounds = run.method, len(run.indices), run.config.cohort, run.config.rounds
        private = private_part(method)
        if private is None:
            return {}
        noises = [private_part(method.at(number)).noise for number in range(rounds)]
        if 0 in noises:
            where = f"round {noises.index(0) + 1}: its epsilon is infinite"
            raise FedsmooError(f"{run.path}: changes are bounded, but there is no noise in {where}")
        random_size = private.expected is not None
        marks = sorted({rounds * k // 10 for k in range(1, 11)} - {0})
        each = {done: epsilon_spent(clients, cohort, noises[:done], self.delta, random_size) for done in marks}
        return {
            "epsilon": each[rounds],
            "epsilons": {str(done): epsilon for done, epsilon in each.items()},
            "delta": self.delta,
            "noise": noises[-1],
            "rounds": rounds,
            "clients": clients,
            "cohort": cohort,
            "sampling": "bernoulli" if random_size else "uniform",
        }

    def rows(self, name: str, values: Values) -> list[list[str]]:
        return [[name, *(f"{values[k]:.4g}" for k in ("epsilon", "delta", "noise", "rounds", "clients"))]]
