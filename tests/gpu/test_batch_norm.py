"""BatchNorm on CUDA, steps captured and compiled, against the serial engine on the CPU; skipped without a GPU."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsmoo.data.check import from_arrays
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = (9, 14, 20, 12, 17)  # in batches of 8: partial ones, and clients that end at different steps
ENDS = np.cumsum(SIZES)
CLIENTS = [np.arange(e - n, e) for n, e in zip(SIZES, ENDS, strict=True)]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((sum(SIZES) + 20, 3, 8, 8)).astype(np.float32)
Y = RNG.integers(4, size=len(X))
DATA = from_arrays(X[: sum(SIZES)], Y[: sum(SIZES)], X[sum(SIZES) :], Y[sum(SIZES) :])


def net(drop: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8),
        nn.ReLU(), nn.Flatten(), nn.Dropout(drop), nn.Linear(72, 4),
    )  # fmt: skip


def ended(device: str, policy: str, drop: float, compiled: bool, method: str) -> dict[str, Tensor]:
    """The server's vectors and the clients' statistics after two rounds."""
    config = Config(
        algorithm=method, clients=5, cohort=5, rounds=2, local_epochs=1, batch_size=8, lr=0.01, statistics=policy,
        device=device, engine="serial", precision="fp32", seed=1, partition="iid",
    )  # fmt: skip
    run = assemble(config, data=DATA, model=FlatModel(copy.deepcopy(net(drop))), indices=CLIENTS)
    if device == "cuda":
        engine = Batched(run.setup, oracle="vmap", stepper=partial(ReplayStepper, compile=compiled))
        run = Simulation(run.setup, engine, run.training, run.indices)
        run.run()
        assert engine.stepper.capture, "the step was not captured"
        assert engine.stepper.compile == compiled, "the step was not compiled"
    else:
        run.run()
    rows = {f"{i} {n}": v.cpu() for i, row in run.engine.table.items() for n, v in row.items()}
    return {n: v.cpu() for n, v in run.server.items()} | rows


@pytest.mark.parametrize(
    ("policy", "drop", "compiled", "method"),
    [
        ("averaged", 0.0, False, "fedavg"),
        ("averaged", 0.0, True, "fedsmoo"),
        ("averaged", 0.3, True, "fedavg"),
        ("local", 0.0, True, "fedavg"),
        ("recomputed", 0.0, False, "fedsam"),
    ],
)
def test_batch_norm_on_cuda_is_serial_s(policy: str, drop: float, compiled: bool, method: str) -> None:
    cpu, gpu = (ended(device, policy, drop, compiled, method) for device in ("cpu", "cuda"))
    assert cpu.keys() == gpu.keys()
    for name, v in cpu.items():
        torch.testing.assert_close(gpu[name], v, rtol=1e-3, atol=1e-4, msg=name)
