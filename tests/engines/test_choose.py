"""Which engine runs a task: a rule decides, not a clock, nor how much memory is free."""

from __future__ import annotations

import ctypes
import dataclasses
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from fedsmoo import simulate
from fedsmoo.algorithms import FedAvg, FedSMOO
from fedsmoo.core import FedsmooError, LocalRule
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines import choose as choosing
from fedsmoo.engines.choose import ENGINES, Choice, choose, make_engine
from fedsmoo.engines.client_state.memory import ran_out
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.task import Task
from fedsmoo.models import build
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config

from .small import dataset, make_setup

CPU = torch.device("cpu")


def samples(*shape: int) -> Dataset:
    x, y = torch.zeros(6, *shape), torch.arange(6) % 3
    return from_arrays(x, y, x, y)


def plain(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attention(x, x, x)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.GRU, units: int = 4) -> None:
        super().__init__()
        self.gru, self.last = kind(8, units, batch_first=True), nn.Linear(units, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gru(x)[0].mean(1))


def dropout() -> nn.Module:
    return nn.Sequential(plain(), nn.Dropout(0.5))


class ByHand(nn.Module):
    """Random layers, and a hand-batched forward, which would draw the same for all clients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def batched(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        raise AssertionError("not for a model that draws")


SMALL, IMAGE, TEXT = samples(64), samples(1, 32, 32), samples(8, 8)
RULE = [  # model, data, cohort -> engine, and a word of why
    (FlatModel(plain()), SMALL, 10, "vmap", "a small model"),
    (FlatModel(plain()), SMALL, 3, "vmap", "a small model"),
    (FlatModel(plain()), SMALL, 2, "serial", "a cohort of 2"),
    (FlatModel(plain()), SMALL, 1, "serial", "a cohort of 1"),
    (FlatModel(plain(2000)), SMALL, 10, "threads", "over 100,000 parameters"),
    (FlatModel(plain(2000)), SMALL, 2, "threads", "over 100,000 parameters"),
    (FlatModel(plain(2000)), SMALL, 1, "serial", "a cohort of 1"),
    (FlatModel(dropout()), SMALL, 10, "vmap", "a small model"),
    (FlatModel(dropout()), SMALL, 2, "serial", "a cohort of 2"),
    (FlatModel(ByHand()), SMALL, 10, "vmap", "a small model"),
    (FlatModel(nn.Sequential(Attention(), nn.Dropout(0.1))), TEXT, 10, "vmap", "a small model"),
    (build("mlp", SMALL, 0), SMALL, 10, "batched", "hand-batched"),
    (build("mlp", SMALL, 0, hidden=400), SMALL, 10, "threads", "parameters"),
    (build("mlp", SMALL, 0), SMALL, 2, "serial", "a cohort of 2"),
    (FlatModel(convolution()), samples(1, 12, 12), 10, "vmap", "a small model"),
    (FlatModel(convolution()), IMAGE, 10, "threads", "convolutions"),
    (build("cnn_gn", IMAGE, 0), IMAGE, 10, "threads", "convolutions"),
    (build("cnn_gn", samples(1, 8, 8), 0), samples(1, 8, 8), 10, "batched", "hand-batched"),
    (FlatModel(Attention()), TEXT, 10, "vmap", "a small model"),
    (FlatModel(Recurrent(nn.GRU, 120)), TEXT, 10, "vmap", "a small model"),
    (FlatModel(Recurrent(nn.LSTM, 100)), TEXT, 10, "vmap", "a small model"),
    (FlatModel(Recurrent(nn.LSTM, 101)), TEXT, 10, "vmap", "a small model"),
    (FlatModel(Recurrent(nn.LSTM, 101)), samples(24, 8), 10, "vmap", "a small model"),
    (FlatModel(Recurrent(nn.LSTM, 101)), samples(25, 8), 10, "threads", "101 units on batches of 4, over 25 positions"),
    (FlatModel(Recurrent(nn.LSTM, 100)), samples(80, 8), 10, "vmap", "a small model"),
]


@pytest.mark.parametrize(("model", "data", "cohort", "engine", "why"), RULE)
def test_the_rule(model: FlatModel, data: Dataset, cohort: int, engine: str, why: str) -> None:
    chosen = choose(Task(model, data, CPU), cohort, 4)
    assert chosen.engine == engine
    assert why in chosen.why
    made = make_engine("auto", Setup(Task(model, data, CPU), FedAvg(), LocalRule()), None, cohort, 4)
    assert (made.name, made.why.split("; products")[0]) == (engine, chosen.why)


def test_on_a_gpu_all_clients_train_at_once() -> None:
    for module, data, cohort, engine in ((Recurrent(), TEXT, 1, "batched"), (dropout(), SMALL, 10, "batched")):
        model = Task(FlatModel(module), data, CPU).model  # a task has looked whether its model draws
        gpu = SimpleNamespace(model=model, device=torch.device("cuda"), data=data)
        assert choose(gpu, cohort).engine == engine  # type: ignore[arg-type]


def test_pixels_are_counted_in_bytes_and_in_numbers() -> None:
    stored = SimpleNamespace(x_train=torch.zeros(2, 20, 30, 3, dtype=torch.uint8), is_image=True)
    assert choosing.pixels(stored) == 600  # type: ignore[arg-type]
    assert choosing.pixels(samples(3, 20, 30)) == 600
    assert choosing.pixels(samples(64)) == 64


CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")


@pytest.mark.parametrize("model", ["mlp", "softmax", "cnn_gn"])
def test_no_clock_is_read(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With clocks that say anything, and then with none at all, the same engine is taken."""
    setup = make_setup(model, FedSMOO())
    for name in (*CLOCKS, *(f"{n}_ns" for n in CLOCKS)):
        monkeypatch.setattr(time, name, lambda: random.random() * 1e9)
    assert {make_engine("auto", setup, None, 3, 4).name for _ in range(10)} == {"batched"}

    def stopped() -> float:
        raise AssertionError("a clock was read")

    for name in (*CLOCKS, *(f"{n}_ns" for n in CLOCKS)):
        monkeypatch.setattr(time, name, stopped)
    assert make_engine("auto", setup, None, 3, 4).name == "batched"


def test_engines_differ_in_the_last_bits() -> None:
    """Which is why a rule has to choose: the same command would otherwise give one model or another."""
    base = Config(dataset="digits", model="mlp", algorithm="fedavg", clients=20, cohort=5, rounds=2, local_steps=3,
                  batch_size=20, device="cpu")  # fmt: skip
    ends = {e: assemble(base.replace(engine=e)).run().server.w for e in ("serial", "batched", "auto")}
    assert torch.equal(ends["auto"], ends["batched"])
    assert not torch.equal(ends["auto"], ends["serial"])
    assert torch.allclose(ends["auto"], ends["serial"], atol=1e-5)


@pytest.mark.parametrize("model", ["mlp", "cnn_gn"])
def test_the_engine_starts_from_nothing(model: str) -> None:
    setup = make_setup(model, FedSMOO())
    engine = make_engine("auto", setup, None, 3, 4)
    assert not engine.table.rows
    assert not engine.table.take_changes()
    table = ClientTable(setup.algorithm.own)
    before = torch.random.get_rng_state()
    assert make_engine("auto", setup, None, 3, 4, table).table is table
    assert not table.rows  # the clients of the step that was tried were never met
    assert torch.equal(torch.random.get_rng_state(), before)


class Stubborn(nn.Module):
    """Looks at its input: vmap cannot run it."""

    def __init__(self, inputs: int = 36) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) if float(x.sum()) > 0 else self.fc(x.flatten(1) + 1)


def stubborn(inputs: int = 36) -> Setup:
    return Setup(Task(FlatModel(Stubborn(inputs)), dataset(), CPU, torch.float64), FedAvg(), LocalRule())


def test_serial_takes_over_where_vmap_cannot_go_and_says_what_failed() -> None:
    engine = make_engine("auto", stubborn(), None, 3, 4)
    assert isinstance(engine, Serial)
    assert re.match(r"vmap cannot run it: .*test_choose.py:\d+ in forward: RuntimeError: vmap: It", engine.why)
    assert len(engine.why) < 150


def test_what_no_engine_can_run_is_said() -> None:
    with pytest.raises(FedsmooError, match=r"no engine can run this model .* vmap: .*; serial: .*RuntimeError: mat1"):
        make_engine("auto", stubborn(inputs=35), None, 3, 4)


def test_memory_that_runs_out_does_not_choose() -> None:
    def full(outputs: Tensor, labels: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: out of memory")

    setup = make_setup("mlp", FedAvg())
    setup = dataclasses.replace(setup, task=dataclasses.replace(setup.task, loss=full))
    with pytest.raises(FedsmooError, match="not even one client fits"):
        make_engine("auto", setup, None, 10, 4)


def test_memory_that_ran_out_is_seen_through_a_wrapper() -> None:
    wrapped = ValueError("a compiler's own words")
    wrapped.__cause__ = torch.OutOfMemoryError("full")
    assert ran_out(wrapped)
    assert not ran_out(ValueError("out of memory is what this value is called"))
    assert not ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_engines_by_name() -> None:
    setup = make_setup("mlp", FedAvg())
    for name in ("serial", "threads", "batched", "vmap"):
        made = make_engine(name, setup, None, 3, 4)
        assert (made.name, made.why) == (name, f"engine={name}")
    assert {"auto", "serial", "threads", "batched", "vmap"} == set(ENGINES)
    with pytest.raises(FedsmooError, match="unknown engine 'seriel': did you mean 'serial'"):
        make_engine("seriel", setup, None, 3, 4)


def mkl_goes_by_the_load() -> bool:
    """What MKL itself says."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    if not hasattr(library, "mkl_serv_get_dynamic"):
        pytest.skip("PyTorch without MKL")
    return bool(library.mkl_serv_get_dynamic())


TINY = Config(model="softmax", clients=4, cohort=2, rounds=1, local_steps=1, device="cpu")


def test_mkl_keeps_to_the_number_of_threads() -> None:
    assemble(TINY)
    assert not mkl_goes_by_the_load()


def test_threads_that_follow_the_load_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    with pytest.raises(FedsmooError, match="OMP_DYNAMIC=true lets the number of threads follow the machine's load"):
        assemble(TINY)
    monkeypatch.setenv("OMP_DYNAMIC", "FALSE")
    assemble(TINY)


class Lengths(nn.Module):
    """The state of an LSTM after the last word of each text, by packed sequences or by picking it."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.packed = nn.Embedding(9, 5), packed
        self.lstm, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = (x != 0).sum(1).clamp(min=1)
        if self.packed:
            texts = pack_padded_sequence(self.words(x), length.cpu(), batch_first=True, enforce_sorted=False)
            return self.head(self.lstm(texts)[1][0][0])
        states = self.lstm(self.words(x))[0]
        return self.head(states.gather(1, (length - 1)[:, None, None].expand(-1, 1, 4))[:, 0])


def test_packed_sequences_train_alone_and_are_refused_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what picking the last state of padded sequences is, which any engine trains."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, (40, 6)) * (np.arange(6) < rng.integers(1, 7, (40, 1)))
    data = from_arrays(x, np.arange(40) % 3, x[:9], np.arange(9) % 3)
    more = {"clients": 4, "cohort": 4, "rounds": 2, "local_steps": 3, "batch_size": 8, "partition": "iid"}
    monkeypatch.setattr(choosing, "choose", lambda *given: Choice("vmap", "as a GPU would"))
    runs = [simulate(Lengths(p), data, "fedavg", dtype="float64", progress=False, **more) for p in (True, False)]
    assert [r.simulation.engine.name for r in runs] == ["serial", "vmap"]
    torch.testing.assert_close(runs[0].server.w, runs[1].server.w, rtol=1e-10, atol=1e-12)
    with pytest.raises(
        FedsmooError, match=r"^packed sequences cannot be trained in a batch of clients: use engine=seri"
    ):
        simulate(Lengths(True), data, "fedavg", engine="vmap", progress=False, **more)
