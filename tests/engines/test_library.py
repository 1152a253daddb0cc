"""By which library a CPU makes products, and that no thread changes it below another."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from patience import PATIENCE
from torch import nn

from fedsmoo import simulate
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.oracles import products
from fedsmoo.engines.oracles.cpu import library
from fedsmoo.engines.oracles.cpu.library import (
    Library,
    Way,
    attends_over,
    best_way,
    is_exact,
    largest_matrix,
    processor,
)
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel

BOTH = Way(onednn=True, whole=True)
ZEN5 = "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 26\nflags : fpu avx512f avx512_bf16\n\nprocessor : 1\n"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Let the machine tell another processor than it has."""

    def tell(text: str) -> None:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(library, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")

    library.onednn_is_wider.cache_clear()
    yield tell
    library.onednn_is_wider.cache_clear()


def switched_on() -> bool:
    return torch.backends.mkldnn.matmul.fp32_precision == "bf16"


def test_the_processor_is_read_from_what_linux_tells(told) -> None:
    told(ZEN5)
    assert processor() == ("AuthenticAMD", 26, frozenset({"fpu", "avx512f", "avx512_bf16"}))
    told("no such lines\n")
    assert processor() == ("", 0, frozenset())


@pytest.mark.parametrize(
    "text",
    [
        ZEN5.replace("AuthenticAMD", "GenuineIntel"),  # where MKL is as fast
        ZEN5.replace("26", "25"),  # which multiplies 256 bits at once
        ZEN5.replace("avx512_bf16", "avx512_bf16 amx_bf16"),  # which would round to bf16
        "",
    ],
)
def test_other_processors_keep_pytorchs_choice(told, text: str) -> None:
    told(text)
    assert not library.onednn_is_wider()
    assert not switched_on()


def test_a_library_that_rounds_to_bf16_is_not_taken(told, monkeypatch: pytest.MonkeyPatch) -> None:
    told(ZEN5)
    plain = torch.addmm

    def rounded(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return plain(bias, a.bfloat16().float(), b.bfloat16().float())

    assert is_exact(8, 16, 8)
    monkeypatch.setattr(torch, "addmm", rounded)
    assert not is_exact(8, 16, 8)
    assert not library.onednn_is_wider()


def task_of(module: nn.Module, x: torch.Tensor) -> Task:
    """A module and inputs, with labels of two classes."""
    x_train, y = x.numpy(), np.arange(len(x)) % 2
    return Task(FlatModel(module), from_arrays(x_train, y, x_train, y), torch.device("cpu"))


def test_the_rule_counts_what_inputs_are_multiplied_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "onednn_is_wider", lambda: True)
    task = task_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 2)), torch.randn(12, 64))
    assert largest_matrix(task.model.module) == 64 * 512
    assert best_way(task, 8) == Way(onednn=True)  # 8 * 32,768 multiplications
    assert best_way(task, 7) == Way()
    assert best_way(dataclasses.replace(task, dtype=torch.float64), 8) == Way()
    monkeypatch.setattr(library, "onednn_is_wider", lambda: False)
    assert best_way(task, 8) == Way()


def test_tables_that_are_looked_up_are_no_products() -> None:
    table = nn.Embedding(1000, 8)
    assert largest_matrix(nn.Sequential(table, nn.Linear(8, 4))) == 32
    assert largest_matrix(table) == 0


class Attends(nn.Module):
    """Attention over positions, large enough for oneDNN, and smooth: no rounding decides on a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 2, 512, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


def test_long_attention_keeps_pytorchs_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "onednn_is_wider", lambda: True)
    monkeypatch.setattr(library, "LONGEST", 5)

    monkeypatch.setattr(products, "cpu_has_bf16", lambda: True)
    for positions, way, rounded in ((5, Way(True, True), Way(False, True)), (6, Way(), Way())):
        task = task_of(Attends(), torch.randn(12, positions, 64))
        assert attends_over(task) == positions
        assert best_way(task, 64) == way
        assert best_way(dataclasses.replace(task, precision="bf16"), 1) == rounded


def test_one_setting_at_a_time_and_back_as_it_was() -> None:
    one, seen = Library(), []
    assert not switched_on()
    inside, leave = threading.Event(), threading.Event()

    def wants_it() -> None:
        with one.taken(BOTH):
            inside.set()
            seen.append(("left", leave.wait(PATIENCE)))
            seen.append(("first", switched_on()))

    def wants_it_too() -> None:
        with one.taken(BOTH):  # at the same time
            seen.append(("second", switched_on()))
        leave.set()

    def wants_the_other() -> None:
        with one.taken(Way()), one.taken(BOTH):  # the inner one changes nothing
            seen.append(("other", switched_on()))

    # A thread that waits for ever must not keep the process of the tests from ending.
    first, second, other = (threading.Thread(target=f, daemon=True) for f in (wants_it, wants_it_too, wants_the_other))
    first.start()
    assert inside.wait(PATIENCE)
    other.start()
    second.start()
    for thread in (first, second, other):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(seen) == [("first", True), ("left", True), ("other", False), ("second", True)]
    assert not switched_on()
    assert torch.backends.cuda.flash_sdp_enabled()
    assert one.users == 0


def test_an_error_inside_leaves_the_setting_as_it_was() -> None:
    one = Library()

    def fails() -> None:
        with one.taken(BOTH):
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not switched_on()
    with one.taken(Way()):  # nobody waits for what has failed
        pass


def test_rounds_in_float32_are_those_of_float64() -> None:
    """On every machine; on one whose oneDNN is wider by that, which must round no factor."""
    torch.manual_seed(0)
    module, rng = Attends(), np.random.default_rng(0)
    x, y = rng.standard_normal((64, 7, 64)), np.arange(64) % 2

    def trained(engine: str, dtype: str) -> torch.Tensor:
        result = simulate(
            module, (x, y, x[:8], y[:8]), "fedavg", engine=engine, dtype=dtype, clients=4, cohort=4, rounds=2,
            local_steps=2, batch_size=16, partition="iid", device="cpu", lr=0.5, progress=False,
        )  # fmt: skip
        assert not switched_on()
        return result.server.w.double()

    truth, start = trained("serial", "float64"), FlatModel(module).initial()
    moved = (truth - start).norm()
    assert (trained("threads", "float32") - truth).norm() < 3e-5 * moved  # bf16 is off by 4e-3
