"""Evaluations in portions: as many samples as a rule of sizes says, and the scores of all at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.data.check import from_arrays
from fedsmoo.engines.looking import portions
from fedsmoo.engines.looking.portions import evaluated_at_once
from fedsmoo.engines.oracles.cpu.channels_last import ChannelsLastOracle, takes_channels_last
from fedsmoo.engines.task import Task
from fedsmoo.models import wrap

SAMPLE = 5 * 8 * 8 * 8  # bytes of the largest tensor of a sample: five maps of 8x8 in float64


def make_task(module: nn.Module, samples: int = 40) -> Task:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((samples, 3, 8, 8)), np.arange(samples) % 3
    data = from_arrays(x, y, x[:21], y[:21], "noise")
    return Task(wrap(module.double(), data), data, torch.device("cpu"), torch.float64)


def weights(task: Task) -> Tensor:
    return task.model.initial()


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(320, 3))


class Mean(nn.Module):
    """Takes the mean over the batch away, also in evaluation: samples see each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Sorted(nn.Module):
    """The answer depends on the other samples in evaluation alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x - x.mean(0)


class AlwaysDropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


class OnlyLarge(nn.Module):
    """Knows no batch of fewer than five samples in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and len(x) < 5:
            raise ValueError("five samples, please")
        return x


@pytest.mark.parametrize(("room", "samples"), [(7 * SAMPLE, 7), (7 * SAMPLE - 1, 6), (1, 1), (2**40, 1000)])
def test_the_largest_tensor_of_a_portion_fits_the_room(monkeypatch, room, samples):
    """The linear layer's weights, three times as large as a sample's maps, do not count."""
    monkeypatch.setattr(portions, "BYTES", room)
    task = make_task(cnn())
    assert evaluated_at_once(task, weights(task)) == samples


@pytest.mark.parametrize("room", [1, 5 * SAMPLE, 2**40])
@pytest.mark.parametrize("order", [torch.preserve_format, torch.channels_last])
def test_scores_are_those_of_all_samples_at_once(monkeypatch, room, order):
    monkeypatch.setattr(portions, "BYTES", room)
    task = make_task(cnn())
    module, (x, y) = task.model.module, task.test
    with torch.no_grad():
        out = module(x)
    answers = (task.answers(weights(task), x, order) for x in task.test.x.split(task.portion))
    scores = task.tally(answers, task.portion, task.test).scores(y)
    assert scores.loss == pytest.approx(F.cross_entropy(out, y).item(), rel=1e-13)
    assert scores.metrics["accuracy"] == pytest.approx((out.argmax(1) == y).double().mean().item(), abs=1e-15)


@pytest.mark.parametrize("layer", [Mean(), Sorted(), AlwaysDropped()])
@pytest.mark.filterwarnings("ignore::fedsmoo.core.errors.FedsmooWarning")
def test_answers_that_depend_on_the_batch_keep_their_portions(monkeypatch, layer):
    monkeypatch.setattr(portions, "BYTES", 1)
    task = make_task(nn.Sequential(layer, *cnn()))
    assert evaluated_at_once(task, weights(task)) == 1000


def test_batchnorm_in_evaluation_is_no_such_answer(monkeypatch):
    monkeypatch.setattr(portions, "BYTES", 1)
    task = make_task(nn.Sequential(nn.BatchNorm2d(3), *cnn()))
    assert evaluated_at_once(task, weights(task)) == 1


@pytest.mark.filterwarnings("ignore::fedsmoo.core.errors.FedsmooWarning")
def test_a_model_that_takes_no_small_batch_is_evaluated_as_before(monkeypatch):
    monkeypatch.setattr(portions, "BYTES", 1)
    task = make_task(nn.Sequential(OnlyLarge(), *cnn()))
    assert evaluated_at_once(task, weights(task)) == 1000


def test_a_model_is_looked_at_once_however_often_it_is_evaluated():
    """Two more passes for every client's few samples would take longer than the evaluation of a small model."""
    seen = list[int]()

    class Seen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x

    task = make_task(nn.Sequential(Seen(), *cnn()))
    first = task.evaluate(weights(task))
    seen.clear()
    assert task.evaluate(weights(task)) == first
    assert seen == [21]


def test_an_oracle_with_channels_last_hands_them_to_the_model_so():
    seen = list[Any]()

    class Seen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(None if self.training else x.is_contiguous(memory_format=torch.channels_last))
            return x

    task = make_task(nn.Sequential(Seen(), *cnn()))
    assert takes_channels_last(task)
    seen.clear()
    ChannelsLastOracle(task).evaluate(weights(task))
    assert seen[-1] is True


def test_a_model_whose_answers_in_evaluation_look_at_memory_has_its_channels_first():
    class Viewed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) if self.training else x.view(len(x), -1)

    conv, relu, _, head = cnn()
    assert not takes_channels_last(make_task(nn.Sequential(conv, relu, Viewed(), head)))


def test_to_look_at_a_model_imports_no_compiler():
    """It would take more than a second at the start of every run."""
    code = (
        "import sys, torch\n"
        "from fedsmoo.engines.looking.observed import Observed\n"
        "seen = []\n"
        "with Observed(lambda operator, given, result: seen.append((operator, result.shape))):\n"
        "    torch.ones(3) + 1\n"
        "assert [str(o) for o, _ in seen] == ['aten.ones.default', 'aten.add.Tensor'], seen\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
