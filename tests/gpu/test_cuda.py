"""Every method on CUDA in float32 against the serial engine on the CPU; skipped, visibly, where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedsmoo import simulate
from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import LocalRule
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.oracles.fused import FusedOracle
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.task import Samples, Task
from fedsmoo.models import build, make_module
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.simulation import Simulation

if torch.cuda.is_available():
    torch.set_num_threads(4)  # small clients on many cores spend their time waiting for each other

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def images(n: int = 160, seed: int = 0) -> Dataset:
    """Learnable noise: each class has its own mean picture."""
    rng = np.random.default_rng(seed)
    y = rng.integers(10, size=n)
    x = np.clip(rng.normal(128, 60, (n, 32, 32, 3)) + 40 * rng.normal(size=(10, 1, 1, 3))[y], 0, 255).astype(np.uint8)
    xt, yt = torch.from_numpy(x), torch.from_numpy(y)
    return Dataset("noise", xt, yt, xt[:40], yt[:40], 10, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), augment=True)


# What no generated pass serves: losses of a method's own, whose gradients the kernels do not take, and single numbers
# that are sent down.
WHOLE = {"fedlc", "fedntd", "fedgmt", "moon", "fedwmsam"}


def after_one_round(
    method: str,
    model: str,
    device: str,
    dtype: torch.dtype,
    compiled: bool = False,
    passes: bool = True,
    precision: str = "fp32",
    clip: float = 10.0,
) -> torch.Tensor:
    """The global weights after one round, in float64."""
    data = images()
    flat = build(model, data, seed=0)
    flat.module.to(dtype)
    where = torch.device(device)
    task = Task(flat, data.to(where), where, dtype, augment=True, precision=precision)
    setup = Setup(task, ALGORITHMS[method](), LocalRule(1e-3, clip))
    if device == "cpu":
        engine = Serial(setup)
    else:
        engine = Batched(setup, stepper=partial(ReplayStepper, compile=compiled, passes=passes))
    # Unequal clients: 9 to 21 samples in batches of 8, so that batches are partial and clients end at different steps.
    indices = [np.arange(20 * i, 20 * i + 9 + 2 * i) for i in range(7)]
    sampling = "bernoulli" if method in ("fedavg", "fedsmoo", "scaffold") else "uniform"
    # A small learning rate: at 0.1 the ResNet amplifies rounding so much that float32 is 4e-4 from float64 on the CPU.
    training = Training(rounds=1, cohort=4, batch_size=8, local_epochs=2, lr=0.001, sampling=sampling, seed=3)
    simulation = Simulation(setup, engine, training, indices)
    simulation.run()
    if device != "cpu":
        assert engine.stepper.capture, "the step was not captured"
        assert engine.stepper.compile == compiled, "the step was not compiled"
        cut = [r.cut for r in engine.stepper.recordings.values()]
        want = passes and model == "resnet18_gn" and method not in WHOLE
        assert cut == [want], "the step was not cut into passes" if want else "the step was cut into passes"
    return simulation.server.w.double().cpu()


def check(method: str, model: str, compiled: bool) -> None:
    """Within 1e-4 of the serial engine, and no further from float64 than a few times the CPU's own float32 is."""
    cpu = after_one_round(method, model, "cpu", torch.float32)
    got = after_one_round(method, model, "cuda", torch.float32, compiled)
    assert (got - cpu).norm() / cpu.norm() < 1e-4
    if model == "resnet18_gn" and method not in ("fedavg", "scaffold", "fedsmoo"):  # in float64 it takes a minute
        return
    truth = after_one_round(method, model, "cpu", torch.float64)
    assert (got - truth).norm() < 5 * (cpu - truth).norm() + 1e-6 * truth.norm()


@pytest.mark.parametrize("model", ["cnn_gn", "resnet18_gn"])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_cuda_agrees_with_serial_on_the_cpu(method: str, model: str) -> None:
    check(method, model, compiled=False)


@pytest.mark.parametrize("model", ["cnn_gn", "resnet18_gn", "mlp"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedsmoo"])
def test_compiled_step_agrees_with_serial_on_the_cpu(method: str, model: str) -> None:
    check(method, model, compiled=True)


@pytest.mark.parametrize("clip", [10.0, 1.5])  # binds for nobody; for some steps of some clients
@pytest.mark.parametrize("method", ["fedavg", "fedsmoo", "fedlesam-s"])
def test_passes_in_bf16_are_as_good_as_the_whole_step(method: str, clip: float) -> None:
    """They differ in that gradients are rounded to bf16: next to nothing beside products in bf16."""
    exact, cut, again, whole = (
        after_one_round(method, "resnet18_gn", "cuda", torch.float32, passes=p, precision=precision, clip=clip)
        for p, precision in ((True, "fp32"), (True, "bf16"), (True, "bf16"), (False, "bf16"))
    )
    assert torch.equal(cut, again)
    assert (cut - exact).norm() < 1.25 * (whole - exact).norm()


def test_captured_evaluation_follows_the_weights() -> None:
    data = images()
    where = torch.device("cuda")
    oracle = FusedOracle(Task(build("resnet18_gn", data, seed=0), data.to(where), where, precision="fp32"))
    on_cpu = Task(build("resnet18_gn", data, seed=0), data, torch.device("cpu"))
    start = oracle.task.model.initial().cpu()
    held = Samples(data.x_train[:30], data.y_train[:30])  # of another size than the test part, and elsewhere
    there = Samples(held.x.to(where), held.y.to(where))
    for scale in (1.0, 0.5, 1.0):
        for on, same in ((None, None), (there, held)):
            found = oracle.evaluate(scale * start.to(where), on)
            accuracy, loss = found.lead, found.loss
            plain = on_cpu.evaluate(scale * start, on=same)
            expected = plain.lead, plain.loss
            assert accuracy == pytest.approx(expected[0], abs=0.035)  # one of 30 may be a tie
            assert loss == pytest.approx(expected[1], rel=1e-4)


class Attentive(nn.Module):
    """Attention with dropout over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, 8, 8)
        return self.out(self.attention(rows, rows, rows, need_weights=False)[0].flatten(1))


class Recurrent(nn.Module):
    """Two recurrent layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 8, num_layers=2, dropout=0.4, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x.reshape(-1, 8, 8))[0].flatten(1))


def layered(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), layer, nn.Linear(32, 10))


@pytest.mark.parametrize("make", [lambda: layered(nn.Dropout(0.5)), lambda: layered(nn.RReLU()), Attentive, Recurrent])
def test_random_layers_draw_the_masks_of_the_cpu(make: Callable[[], nn.Module]) -> None:
    settings = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 3, "batch_size": 10, "lr": 0.05}
    module = make_module(make, 0)
    here, there, other = (
        simulate(module, "digits", "fedsmoo", device=device, seed=seed, **settings).server.w.double().cpu()
        for device, seed in (("cpu", 0), ("cuda", 0), ("cpu", 1))
    )
    assert float((here - there).abs().max()) < 1e-5 < float((here - other).abs().max())
