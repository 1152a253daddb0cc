"""The oracle of the kernels: its buffers go when it goes, without waiting for the garbage collector."""

import gc
import weakref

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
        seen = weakref.ref(kernel.buffers)
        del oracle, kernel
        assert seen() is None
    finally:
        gc.enable()
