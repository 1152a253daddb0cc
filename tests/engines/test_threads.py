"""Clients in several threads: the bits do not depend on how many there are, and the numbers are those of `serial`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from patience import PATIENCE
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode

from fedsmoo import simulate
from fedsmoo.core import FedsmooError
from fedsmoo.data.check import from_arrays
from fedsmoo.engines import task
from fedsmoo.engines.oracles.cpu.channels_last import CHANNELS_LAST, POOLED, lay_out_gradients, takes_channels_last
from fedsmoo.engines.serial import sum_of_threads
from fedsmoo.engines.task import Task
from fedsmoo.engines.threads import Threads
from fedsmoo.models.base import FlatModel
from fedsmoo.models.draws import as_it_was
from fedsmoo.runs.results.result import Result

SETTINGS: dict[str, Any] = {
    "clients": 5, "cohort": 5, "rounds": 2, "local_steps": 2, "batch_size": 4, "partition": "iid", "device": "cpu",
    "dtype": "float64",
}  # fmt: skip


def images(n: int = 30) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, 3, 16, 16)), np.arange(n) % 3
    return x, y, x[:5], y[:5]


def cnn(flatten: nn.Module | None = None, *more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), *more
    return nn.Sequential(*layers, flatten or nn.Flatten(), nn.Linear(256, 3))


class Viewed(nn.Module):
    """Looks at memory: only where channels are first."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.Dropout(0.2), nn.LayerNorm(8), nn.Linear(8, 3))


class Scaled(nn.Module):
    """A constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


MODULES = {
    "convolutions": cnn,
    "views": lambda: cnn(Viewed()),
    "dropout": lambda: cnn(None, nn.Dropout(0.3)),
    "BatchNorm": lambda: cnn(None, nn.BatchNorm2d(4)),
    "a constant": lambda: cnn(None, Scaled()),
    "no convolution": mlp,
}


def trained(
    module: nn.Module, engine: str, threads: int = 1, method: str = "fedavg", data: Any = None, **settings: Any
) -> Result:
    torch.set_num_threads(threads)
    try:
        result = simulate(module, data or images(), method, engine=engine, **{**SETTINGS, **settings})
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    return result


@pytest.mark.parametrize("name", MODULES)
def test_any_number_of_threads_gives_the_same_bits_which_are_those_of_serial_but_for_rounding(name: str) -> None:
    one, three = (trained(MODULES[name](), "threads", n) for n in (1, 3))
    serial = trained(MODULES[name](), "serial")
    assert three.simulation.engine.name == "threads"
    assert torch.equal(one.server.w, three.server.w)
    if name in ("views", "no convolution"):  # no other layout in memory: the very same operations
        assert torch.equal(one.server.w, serial.server.w)
    assert float((one.server.w - serial.server.w).abs().max()) < 1e-12
    losses = [[r.train_loss for r in run.history] for run in (one, three, serial)]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-12)


class Cached(nn.Module):
    """Keeps its input for the rest of its pass, which another pass of the same module would take away."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return self.inner(x) + self.x.mean((1, 2, 3))[:, None]


PORTION = 7  # samples: no look at a model takes as many


class Met(nn.Module):
    """Waits in evaluation until two passes are under way."""

    both = Barrier(2, timeout=PATIENCE)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and len(x) == PORTION:
            self.both.wait()
        return x


EVALUATED = {**MODULES, "a cache": lambda: Cached(cnn())}


@pytest.mark.parametrize("name", EVALUATED)
def test_an_evaluation_has_the_scores_of_serial_and_with_any_number_of_threads_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty-two samples in four portions, of which the last is one sample."""
    x, y, *_ = images()
    monkeypatch.setattr(task, "evaluated_at_once", lambda task, w: PORTION)
    found = [trained(EVALUATED[name](), engine, threads, data=(x, y, x[:22], y[:22]))
             for engine, threads in (("threads", 1), ("threads", 3), ("serial", 1))]  # fmt: skip
    one, three, serial = ([(r.test_loss, r.test_accuracy) for r in run.history] for run in found)
    assert one == three
    assert [loss for loss, _ in one] == pytest.approx([loss for loss, _ in serial], rel=1e-12)
    assert [right for _, right in one] == [right for _, right in serial]


def test_portions_of_an_evaluation_are_answered_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four passes waits for another one."""
    x, y, *_ = images()
    monkeypatch.setattr(task, "evaluated_at_once", lambda task, w: PORTION)
    run = trained(nn.Sequential(Met(), cnn()), "threads", 2, data=(x, y, x[:28], y[:28]), rounds=1)
    assert run.history[-1].test_loss == pytest.approx(
        trained(cnn(), "serial", data=(x, y, x[:28], y[:28]), rounds=1).history[-1].test_loss, rel=1e-12
    )


@pytest.mark.parametrize("first", [torch.contiguous_format, CHANNELS_LAST])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_gradients_of_pooling_are_those_of_each_sample_whatever_the_layout(
    first: torch.memory_format, kernel: int, stride: int, padding: int
) -> None:
    """Every gradient goes to the largest number of its window."""
    lay_out_gradients()
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 8, 8, generator=draw).contiguous(memory_format=first)
    sizes = [kernel] * 2, [stride] * 2, [padding] * 2, [1, 1], False
    out, index = torch.ops.aten.max_pool2d_with_indices(x, *sizes)
    gradient = torch.randn(out.shape, generator=draw)
    expected = torch.zeros(2, 3, 64)
    for n, c, i, j in np.ndindex(*out.shape):
        expected[n, c, index[n, c, i, j]] += gradient[n, c, i, j]
    for given in (gradient, gradient.contiguous(memory_format=CHANNELS_LAST)):
        found = POOLED(given, x, *sizes, index)
        assert torch.equal(found.flatten(2), expected)
        assert found.is_contiguous(memory_format=first)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [7, 32767, 32768, 32769, 65537, 300_001])
def test_the_sum_of_several_threads_can_be_had_in_one_to_the_bit(threads: int, size: int) -> None:
    v = torch.randn(size, generator=torch.Generator().manual_seed(size)).square()
    torch.set_num_threads(threads)
    try:
        expected = v.sum()
    finally:
        torch.set_num_threads(1)
    assert torch.equal(sum_of_threads(v, threads), expected)


@pytest.mark.parametrize("engine", ["threads", "serial"])
def test_how_far_a_client_moved_has_the_bits_of_the_machine_s_threads(engine: str) -> None:
    """Of the only client of a round: the server's model moves as far."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 200), nn.ReLU(), nn.Linear(200, 3))
    run = trained(net, engine, 2, cohort=1, rounds=1, dtype="float32")
    each = (run.server.w - FlatModel(net).initial()).square()
    torch.set_num_threads(2)
    try:
        expected = each.sum().item()
    finally:
        torch.set_num_threads(1)
    assert run.history[0].drift == expected


@pytest.mark.parametrize("method", ["fedsmoo", "scaffold", "moon", "krum"])
def test_methods_keep_their_vectors_client_by_client(method: str) -> None:
    one = trained(cnn(), "threads", 2, method)
    serial = trained(cnn(), "serial", 1, method)
    for client in range(5):
        for vector, v in one.client_state(client).items():
            assert float((v - serial.client_state(client)[vector]).abs().max()) < 1e-11
    assert float((one.server.w - serial.server.w).abs().max()) < 1e-11


def test_channels_are_last_where_the_model_takes_them_so() -> None:
    x, y, *_ = images()

    def takes(module: nn.Module, samples: np.ndarray = x, dtype: torch.dtype = torch.float64) -> bool:
        return takes_channels_last(Task(FlatModel(module.to(dtype)), from_arrays(samples, y, samples, y),
                                        torch.device("cpu"), dtype))  # fmt: skip

    assert takes(cnn())
    assert takes(cnn(None, nn.Dropout(0.3)))
    normed = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(4, 4), *list(cnn())[2:])
    assert takes(normed, dtype=torch.float32)  # whose gradients by the first biases are 0 but for rounding
    assert not takes(cnn(Viewed()))
    assert not takes(mlp())
    series = nn.Sequential(nn.Conv1d(3, 2, 3), nn.Flatten(), nn.Linear(28, 3))
    assert not takes(series, x[:, :, 0])


def test_the_largest_share_of_threads_follows_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsmoo.engines import threads

    setup = trained(cnn(), "threads").simulation.setup
    monkeypatch.setattr(threads, "clients_that_fit", lambda setup, batch_size: 2)
    torch.set_num_threads(3)
    try:
        assert Threads(setup).threads == 2
    finally:
        torch.set_num_threads(1)


class Failing(nn.Module):
    """Fails at the third pass in training of each copy."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = cnn(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls > 9:
            raise ValueError("had enough")
        return self.inner(x)


def test_what_a_client_raises_is_said_as_by_serial() -> None:
    with pytest.raises(FedsmooError, match=r"the threads engine cannot train.*test_threads.py.*had enough"):
        trained(Failing(), "threads", 2, local_steps=20)


def test_what_torch_notes_of_modes_is_as_it_was_after_threads_that_used_some() -> None:
    """Of two threads that enter and leave by turns, the last leaves a note behind that a mode is in force."""

    class Nothing(TorchDispatchMode):
        pass

    first, second = Nothing(), Nothing()

    def by_turns() -> None:
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
            one.submit(first.__enter__).result()
            two.submit(second.__enter__).result()
            one.submit(first.__exit__, None, None, None).result()
            two.submit(second.__exit__, None, None, None).result()

    assert not is_in_torch_dispatch_mode()
    with as_it_was():
        by_turns()
        assert is_in_torch_dispatch_mode()  # though no thread is
    assert not is_in_torch_dispatch_mode()
