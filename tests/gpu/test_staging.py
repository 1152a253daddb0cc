"""Samples in the host's memory on CUDA, copied ahead on a stream of their own: the bits of samples on the GPU."""

from __future__ import annotations

import pytest
import torch

from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BASE = {"dataset": "digits", "rounds": 4, "clients": 12, "cohort": 5, "local_epochs": 3, "batch_size": 8, "lr": 0.05}


@pytest.mark.parametrize("model", ["mlp", "cnn_gn"])
@pytest.mark.parametrize("engine", ["batched", "vmap", "serial"])
@pytest.mark.parametrize("method", ["fedavg", "fedsmoo"])
def test_bits_do_not_depend_on_where_samples_lie(model, engine, method):
    made = {}
    for where in ("device", "host"):
        made[where] = assemble(
            Config(**BASE, model=model, engine=engine, algorithm=method, samples_in=where, device="cuda")
        )
        made[where].run()
    there = made["host"].setup.task.data
    assert there.x_train.device.type == "cpu"
    device, host = (m.server.w for m in made.values())
    assert torch.equal(device, host)
    assert [r.test_loss for r in made["device"].history] == [r.test_loss for r in made["host"].history]
