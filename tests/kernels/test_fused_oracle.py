"""The oracle of the kernels: its buffers go when it goes, without waiting for the garbage collector."""

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import torch

from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.task import Task
from fedsmoo.models import build


def test_an_oracle_that_nobody_holds_is_freed_at_once(device):
    from fedsmoo.engines.oracles.fused import FusedOracle

    x = torch.from_numpy(np.zeros((4, 32, 32, 3), dtype=np.uint8))
    y = torch.arange(4)
    data = Dataset("none", x, y, x, y, 10, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    where = torch.device(device)
    gc.disable()
    try:
        oracle = FusedOracle(Task(build("resnet18_gn", data, 0), data.to(where), where))
        kernel = oracle.kernel(1, 1)
        if device == "cuda":
            oracle.evaluate(torch.zeros(oracle.task.model.layout.size, device=where))  # keeps a captured graph
            assert oracle.evaluations
        seen = weakref.ref(kernel.buffers)
        del oracle, kernel
        assert seen() is None
    finally:
        gc.enable()


def test_a_part_of_samples_has_an_evaluation_of_its_own(monkeypatch):
    """The first ones of some samples begin at the same address, and others may have the same labels."""
    from fedsmoo.engines.oracles import fused
    from fedsmoo.engines.task import Samples

    class Here(torch.Tensor):  # on the device of the task, as far as it says: tensors say which one it is
        device = torch.device("cuda:0")

    def evaluation(on):
        tally = SimpleNamespace(scores=lambda y: int(on.x.sum() + on.y.sum()))
        return fused.CapturedEvaluation(on, torch.zeros(1), tally, lambda: None)

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    oracle = object.__new__(fused.FusedOracle)
    oracle.task, oracle.evaluations = SimpleNamespace(device=torch.device("cuda"), metrics=()), {}
    oracle.capture = evaluation
    x, y, other = torch.arange(6).view(6, 1).as_subclass(Here), torch.arange(6), torch.arange(6) + 10
    parts = [Samples(x, y), Samples(x[:3], y[:3]), Samples(x, other), Samples(x[::2], y[::2]), Samples(x[1:], y[1:])]
    for _ in range(2):
        assert [oracle.evaluate(torch.zeros(1), on) for on in parts] == [30, 6, 90, 12, 30]
    assert len(oracle.evaluations) == 5
