"""Who is served well: accuracy of the global model per class and per client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedsmoo.analysis.measurement import Measurement, Moment, Subject, Values, finite
from fedsmoo.analysis.objective import objective
from fedsmoo.core.untrusted import numbers, text
from fedsmoo.engines.task import Task


@dataclass(frozen=True)
class Fairness:
    """Test accuracy per class; per client on its mix of classes (``clients``) and on its own samples (``own``)."""

    classes: np.ndarray
    clients: np.ndarray
    own: np.ndarray

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.clients))

    @property
    def deviation(self) -> float:
        return float(np.nanstd(self.clients))

    @property
    def worst_tenth(self) -> float:
        """Mean accuracy of the worst tenth of the clients (at least one)."""
        return tenth(self.clients)

    @property
    def best_tenth(self) -> float:
        return -tenth(-self.clients)


def tenth(values: np.ndarray) -> float:
    """Return the mean of the lowest tenth, at least one value.

    >>> tenth(np.array([0.9, 0.1, 0.5]))
    0.1
    """
    known = np.sort(values[~np.isnan(values)])
    return float(known[: max(1, math.ceil(len(known) / 10))].mean())


def class_accuracy(task: Task, w: Tensor) -> np.ndarray:
    """Return test accuracy per class; nan for a class without test samples."""
    test = objective(task, "test")
    right = (test.outputs(w).argmax(-1) == test.y).flatten().cpu().numpy()
    labels = test.y.flatten().cpu().numpy()
    total = np.bincount(labels, minlength=task.data.classes)
    hits = np.bincount(labels, weights=right, minlength=task.data.classes)
    return np.where(total > 0, hits / np.maximum(total, 1), np.nan)


def fairness(task: Task, w: Tensor, indices: Sequence[np.ndarray]) -> Fairness:
    """Return accuracies of a global model for every class and every client.

    A client's test accuracy is that of the classes, weighted by its own mix: what it would see on new samples of the
    kind it holds. ``own`` is the accuracy on the very samples it trains with.
    """
    classes = class_accuracy(task, w)
    train = objective(task, "train")
    right = (train.outputs(w).argmax(-1) == train.y).double().flatten(1 if train.y.dim() > 1 else 0)
    each = (right.mean(1) if right.dim() > 1 else right).cpu().numpy()
    labels = train.y.cpu().numpy()
    clients, own = [], []
    for held in indices:
        counts = np.bincount(labels[held].reshape(-1), minlength=len(classes))
        known = ~np.isnan(classes) & (counts > 0)
        clients.append(np.average(classes[known], weights=counts[known]) if known.any() else np.nan)
        own.append(each[held].mean())
    return Fairness(classes, np.array(clients), np.array(own))


@dataclass(frozen=True)
class PartitionMeasurement(Measurement):
    """Samples per client and class, for figures and pages."""

    name = "partition"
    help = "Samples per client and class."
    columns = ("clients", "classes")

    def measure(self, run: Subject, *others: Subject) -> Values:
        labels, data = run.task.data.y_train.cpu().numpy(), run.task.data
        counts = [np.bincount(labels[held].reshape(-1), minlength=data.classes).tolist() for held in run.indices]
        return {"counts": counts, "class_names": list(data.class_names or []) or None}

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
        found, data = fairness(run.task, run.w, run.indices), run.task.data
        return {
            **{k: getattr(found, k) for k in ("mean", "deviation", "worst_tenth", "best_tenth")},
            **{k: finite(getattr(found, k)) for k in ("classes", "clients", "own")},
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
        found = fairness(now.setup.task, now.server.w, now.indices)
        return {"worst_tenth": found.worst_tenth, "client_deviation": found.deviation}
