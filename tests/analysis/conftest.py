"""Small float64 tasks on digits, with their dense Hessians computed another way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, hessian
from torch.nn import functional as F

from fedsmoo.analysis.functions.objective import Objective, objective
from fedsmoo.core.random.streams import stream
from fedsmoo.data.sources import load
from fedsmoo.engines.task import Task
from fedsmoo.models import build

MODELS = {"mlp": {"hidden": 5}, "cnn_gn": {"width": 2}}


def small_task(model: str, dtype: torch.dtype = torch.float64, **options: int) -> Task:
    data = load("digits")
    flat = build(model, data, seed=0, **(options or MODELS.get(model, {})))
    flat.module.to(dtype)
    return Task(flat, data, torch.device("cpu"), dtype)


@dataclass(frozen=True)
class Small:
    """A loss of a small model on a few digits, at a model that is not an initialisation, and its dense Hessian."""

    loss: Objective
    w: Tensor
    dense: Tensor


@pytest.fixture(scope="session", params=list(MODELS))
def small(request: pytest.FixtureRequest) -> Small:
    task = small_task(request.param)
    start = task.model.initial()
    w = start + 0.1 * torch.from_numpy(stream(0, "test point").standard_normal(len(start)))
    loss = objective(task, "train", samples=60, size=25)  # three batches, the last one smaller
    x, y = loss.x.double(), loss.y
    sizes = [(n, p.shape, p.numel()) for n, p in task.model.module.named_parameters()]

    def plain(v: Tensor) -> Tensor:
        named, at = {}, 0
        for name, shape, count in sizes:
            named[name] = v[at : at + count].view(shape)
            at += count
        return F.cross_entropy(functional_call(task.model.module, named, (x,)), y)

    return Small(loss, w, hessian(plain)(w))
