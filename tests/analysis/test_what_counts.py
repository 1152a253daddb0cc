"""Positions without a label, a label that the loss ignores, and outputs that are NaN: as in what a run records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsmoo.analysis.functions.bound import margin_error
from fedsmoo.analysis.functions.fairness import fairness
from fedsmoo.analysis.functions.landscape import line
from fedsmoo.analysis.functions.objective import objective
from fedsmoo.data.check import from_arrays
from fedsmoo.data.targets import NO_LABEL
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel
from fedsmoo.models.loss import CrossEntropy

G = torch.Generator().manual_seed(0)
K, LENGTH = 4, 6
X = torch.randint(5, (60, LENGTH), generator=G)
WHOLE = torch.randint(K, X.shape, generator=G)
# Sequences of one to six labels, the short ones first: batches differ in how many labels they have.
PADDED = torch.arange(LENGTH) > torch.arange(60)[:, None] // 10
CLIENTS = [np.arange(0, 25), np.arange(25, 40)]


def task_of(ignored: int) -> Task:
    """Return a task whose model says a class for every token; its first 40 samples are trained on.

    Padding is -100, or a class that the loss ignores wherever it is.
    """
    torch.manual_seed(0)
    y = WHOLE.masked_fill(PADDED, ignored)
    data = from_arrays(X[:40], y[:40], X, y)
    mine = tuple(map(torch.from_numpy, CLIENTS))
    data = replace(data, natural=mine, natural_test=(torch.arange(60), torch.arange(0)))
    model = FlatModel(nn.Embedding(5, K))
    return Task(model, data, torch.device("cpu"), loss=CrossEntropy(ignore_index=ignored))


def by_hand(task: Task, samples: np.ndarray, ignored: int) -> float:
    """Count, position by position, what the table of the only layer says right."""
    said, data = task.model.module.weight.argmax(1), task.data
    x, y = (v[torch.from_numpy(samples)].flatten() for v in (data.x_test, data.y_test))
    there = [(said[a].item(), b.item()) for a, b in zip(x, y, strict=True) if b.item() != ignored]
    return sum(a == b for a, b in there) / len(there)


@pytest.mark.parametrize("ignored", [NO_LABEL, 2])
def test_accuracies_are_of_what_counts(ignored: int) -> None:
    task = task_of(ignored)
    w, want = task.model.initial(), by_hand(task, np.arange(60), ignored)
    assert task.evaluate(w).lead == pytest.approx(want)
    test = objective(task, "test", size=25)
    assert test.evaluate(w)[1] == pytest.approx(want)
    assert line(test, w, w + 1, np.array([0.0]))[1] == pytest.approx([want])
    assert margin_error(test, w, torch.zeros_like(w), 0.0) == pytest.approx(1 - want)


@pytest.mark.parametrize("ignored", [NO_LABEL, 2])
def test_fairness_is_of_what_counts(ignored: int) -> None:
    task = task_of(ignored)
    found = fairness(task, task.model.initial(), CLIENTS)
    assert found.own == pytest.approx([by_hand(task, i, ignored) for i in CLIENTS])
    assert found.clients == pytest.approx([by_hand(task, np.arange(60), ignored), np.nan], nan_ok=True)
    assert np.isnan(found.classes).tolist() == [k == ignored for k in range(K)]


def test_outputs_that_are_nan_are_wrong_answers() -> None:
    """NaN would be the largest output: of the first class, all labels of that class were right."""
    task = task_of(NO_LABEL)
    w = torch.full_like(task.model.initial(), torch.nan)
    test = objective(task, "test", size=25)
    assert task.evaluate(w).lead == test.evaluate(w)[1] == line(test, w, w, np.array([0.0]))[1][0] == 0
    assert margin_error(test, w, torch.zeros_like(w), 0.0) == 1
    found = fairness(task, w, CLIENTS)
    assert [*found.own, found.clients[0], *found.classes] == [0] * (len(CLIENTS) + 1 + K)
