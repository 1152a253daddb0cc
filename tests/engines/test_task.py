"""Accuracy and loss on the test part, from outputs whose right answers can be counted by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.contract import plus
from fedsmoo.engines.task import Task
from fedsmoo.models import build
from fedsmoo.models.loss import cross_entropy

SURE = math.log(3)  # added to one of three equal scores: its probability becomes 3 / (3 + 1 + 1) = 3/5


def text_task() -> tuple[Task, torch.Tensor]:
    """Three test samples of four characters each, and outputs that are right at 2, 4 and 1 of these."""
    y = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2], [2, 0, 0, 1]])
    guess = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 2], [0, 1, 1, 1]])
    data = Dataset("letters", y, y, torch.arange(3)[:, None].expand(3, 4).clone(), y, 3)
    task = Task(build("char_gru", data, 0), data, torch.device("cpu"), torch.float64)
    return task, SURE * torch.nn.functional.one_hot(guess, 3).double()


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_every_character_of_a_text_counts_once(size):
    """7 of 12 are right: -log(3/5) each; the others cost -log(1/5). A sample's loss is the mean of its characters'."""
    task, outputs = text_task()
    tally = task.tally((outputs[x[:, 0]] for x in task.test.x.split(size)), size, task.test)
    scores = tally.scores(task.test.y)
    assert scores.metrics == {"accuracy": pytest.approx(7 / 12, abs=1e-15)}
    assert scores.loss == pytest.approx(-(7 * math.log(3 / 5) + 5 * math.log(1 / 5)) / 12, rel=1e-14)
    assert tally.sums[1].item() == 7


def test_the_loss_of_a_sample_is_the_mean_over_its_labels():
    task, outputs = text_task()
    right, wrong = -math.log(3 / 5), -math.log(1 / 5)
    each = [(2 * right + 2 * wrong) / 4, right, (right + 3 * wrong) / 4]
    torch.testing.assert_close(cross_entropy(outputs, task.data.y_test), torch.tensor(each, dtype=torch.float64))
    one = cross_entropy(outputs[:, 0], task.data.y_test[:, 0])
    torch.testing.assert_close(one, torch.tensor([right, right, wrong], dtype=torch.float64))


@pytest.mark.parametrize("size", [2, 5, 1000])
def test_a_label_per_sample(size):
    """Four of five right."""
    y = torch.tensor([0, 1, 2, 2, 1])
    x = torch.arange(5.0, dtype=torch.float64)[:, None]
    data = Dataset("numbers", x, y, x, y, 3)
    task = Task(build("softmax", data, 0), data, torch.device("cpu"), torch.float64)
    outputs = SURE * torch.nn.functional.one_hot(torch.tensor([0, 1, 2, 2, 0]), 3).double()
    answers = (outputs[x[:, 0].long()] for x in task.test.x.split(size))
    scores = task.tally(answers, size, task.test).scores(task.test.y)
    assert scores.lead == pytest.approx(4 / 5)
    assert scores.loss == pytest.approx(-(4 * math.log(3 / 5) + math.log(1 / 5)) / 5, rel=1e-14)


def test_sums_in_place_only_where_they_fit() -> None:
    a, wide = torch.ones(1), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert plus(a, wide, into=True).tolist() == [2.0, 3.0, 4.0]
    assert plus(a, a.double(), into=True).dtype == torch.float64
    assert a.tolist() == [1.0]
    assert plus(a, a, into=True) is a
    assert a.tolist() == [2.0]
