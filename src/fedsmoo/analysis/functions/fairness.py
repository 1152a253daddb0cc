"""Who is served well: accuracy of the global model per class and per client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsmoo.analysis.functions.objective import Objective, labels_that_count, objective, refuse_no_classes
from fedsmoo.data.targets import NO_LABEL, classes_said
from fedsmoo.engines.task import Task


@dataclass(frozen=True)
class Fairness:
    """Test accuracy per class, and per client on its own test samples or by its classes; ``own``: on what it trains."""

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
        return mean_of_lowest_tenth(self.clients)

    @property
    def best_tenth(self) -> float:
        return -mean_of_lowest_tenth(-self.clients)


def mean_of_lowest_tenth(values: np.ndarray) -> float:
    """Return the mean of the lowest tenth, at least one value.

    >>> mean_of_lowest_tenth(np.array([0.9, 0.1, 0.5]))
    0.1
    """
    known = np.sort(values[~np.isnan(values)])
    return float(known[: max(1, math.ceil(len(known) / 10))].mean())


def class_counts(task: Task, indices: Sequence[np.ndarray]) -> list[list[int]]:
    """Return how many samples of each class every client holds."""
    refuse_no_classes(task, "fairness")
    each = (task.data.y_train.cpu().numpy()[held].reshape(-1) for held in indices)
    return [np.bincount(labels[labels != NO_LABEL], minlength=task.data.classes).tolist() for labels in each]


def class_accuracy(task: Task, w: Tensor) -> np.ndarray:
    """Return test accuracy per class; nan for a class without test samples."""
    refuse_no_classes(task, "fairness")
    test = objective(task, "test")
    there = labels_that_count(task, test.y)
    right = (classes_said(test.outputs(w)) == test.y)[there].cpu().numpy()
    labels = test.y[there].cpu().numpy()
    total = np.bincount(labels, minlength=task.data.classes)
    hits = np.bincount(labels, weights=right, minlength=task.data.classes)
    return np.where(total > 0, hits / np.maximum(total, 1), np.nan)


def fairness(task: Task, w: Tensor, indices: Sequence[np.ndarray]) -> Fairness:
    """Return accuracies of a global model for every class and every client.

    A client's test accuracy is that on its own test samples, where the data has such. Else it is that of the classes,
    weighted by its own mix: what it would see on new samples of the kind it holds. ``own`` is the accuracy on the very
    samples it trains with. Of sequences it is the share of labelled positions, as in a run's metrics.
    """
    classes, tests = class_accuracy(task, w), own_accuracy(task, w, indices)
    train = objective(task, "train")
    each = count_right(train, w)
    labels = train.y.cpu().numpy()
    clients, own = [], []
    for held in indices:
        mine = labels[held].reshape(-1)
        counts = np.bincount(mine[mine != NO_LABEL], minlength=len(classes))
        known = ~np.isnan(classes) & (counts > 0)
        clients.append(np.average(classes[known], weights=counts[known]) if known.any() else np.nan)
        own.append(share_right(each[held]))
    return Fairness(classes, np.array(clients) if tests is None else tests, np.array(own))


def own_accuracy(task: Task, w: Tensor, indices: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the accuracy on each client's own test samples, nan for one without; ``None`` where nobody has any."""
    parts = task.data.own_tests(indices)
    if parts is None:
        return None
    each = count_right(objective(task, "test"), w)
    return np.array([share_right(each[mine]) for mine in parts])


def count_right(part: Objective, w: Tensor) -> np.ndarray:
    """Count for each sample the labels that a model says right, and those that count at all: ``[N, 2]``."""
    there = labels_that_count(part.task, part.y)
    right = (classes_said(part.outputs(w)) == part.y) & there
    return torch.stack([v.reshape(len(v), -1).sum(1) for v in (right, there)], 1).cpu().numpy()


def share_right(counts: np.ndarray) -> float:
    """Return the share that is right of some samples; nan if none of them counts."""
    right, there = counts.sum(0)
    return float(right / there) if there else np.nan
