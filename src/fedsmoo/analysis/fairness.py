"""Measure fairness: the accuracy of the global model per class and per client, and who holds what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsmoo.analysis.measurement import Measurement, Moment, Subject, Values, json_numbers
from fedsmoo.core.untrusted import numbers, text


@dataclass(frozen=True)
class PartitionMeasurement(Measurement):
    """Samples per client and class, for figures and pages."""

    name = "partition"
    help = "Samples per client and class."
    columns = ("clients", "classes")

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.fairness import class_counts

        names = list(run.task.data.class_names or [])
        return {"counts": class_counts(run.task, run.indices), "class_names": names or None}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        return [[name, str(len(values["counts"])), str(len(values["counts"][0]))]]

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
        return None  # pages show it apart from the measurements


@dataclass(frozen=True)
class FairnessMeasurement(Measurement):
    """Accuracy per class and per client, and of the worst and best tenth."""

    name = "fairness"
    help = "Accuracy of the global model per class and per client."
    columns = ("mean client (%)", "worst tenth", "best tenth", "deviation")
    also = (PartitionMeasurement,)

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.fairness import fairness

        found, data = fairness(run.task, run.w, run.indices), run.task.data
        return {
            **{k: getattr(found, k) for k in ("mean", "deviation", "worst_tenth", "best_tenth")},
            **{k: json_numbers(getattr(found, k)) for k in ("classes", "clients", "own")},
            "class_names": list(data.class_names or [str(k) for k in range(data.classes)]),
        }

    def rows(self, name: str, values: Values) -> list[list[str]]:
        return [[name, *(f"{100 * values[k]:.2f}" for k in ("mean", "worst_tenth", "best_tenth", "deviation"))]]

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
        names = values.get("class_names")
        return {
            **(super().trusted(values) or {}),
            "classes": numbers(values.get("classes"), 5)[:2000],
            "clients": numbers(values.get("clients"), 5)[:20_000],
            "class_names": [text(n, 60) for n in names[:2000]] if isinstance(names, list) else [],
        }

    @classmethod
    def probe(cls, now: Moment) -> dict[str, float]:
        """Measure the accuracy of the worst tenth of the clients, and the spread over clients."""
        from fedsmoo.analysis.functions.fairness import fairness

        found = fairness(now.setup.task, now.server.w, now.indices)
        return {"worst_tenth": found.worst_tenth, "client_deviation": found.deviation}
