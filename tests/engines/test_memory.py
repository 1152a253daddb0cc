"""What counts as free memory, and how much of it a client takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedsmoo.algorithms import FedAvg
from fedsmoo.core import LocalRule
from fedsmoo.core.random.noise import Noise
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.client_state import memory
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.task import Task
from fedsmoo.models import build, wrap
from fedsmoo.models.resnet import BasicBlock

MEMINFO = """MemTotal:        8000000 kB
MemFree:          100000 kB
MemAvailable:    6000000 kB
Buffers:           20000 kB
"""


def test_memory_that_the_system_can_give_back_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a machine's memory holds files that were read once; it is given to whoever asks."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert memory.available_bytes(torch.device("cpu")) == 6_000_000 * 1024


@pytest.mark.parametrize("text", [None, "MemFree:   100000 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_a_system_that_does_not_say_is_asked_otherwise(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}[name])
    assert memory.available_bytes(torch.device("cpu")) == 7 * 4096


def kept_by(loss: Tensor, shared: set[int]) -> int:
    """Bytes of all blocks of memory that hang on a loss, found by a walk through autograd's graph."""
    blocks, todo, met = dict[int, int](), [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in met:
            continue
        met.add(node)
        todo += [n for n, _ in node.next_functions]
        for name in (n for n in dir(node) if n.startswith("_saved_")):
            found = getattr(node, name)
            for t in found if isinstance(found, list | tuple) else [found]:
                if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in shared:
                    blocks[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(blocks.values())


def residual() -> nn.Module:
    block = BasicBlock(3, 4, 2, 2)
    return nn.Sequential(block, nn.Conv2d(4, 4, 3).requires_grad_(False), nn.Flatten(), nn.LazyLinear(3))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(300, 9), nn.Dropout(0.5), nn.Tanh(), nn.Linear(9, 3))


@pytest.mark.parametrize("make", [residual, noisy])
def test_activations_of_any_module_are_what_hangs_on_its_loss(make: Callable[[], nn.Module]) -> None:
    """Frozen weights are there once for all clients, dropout keeps its mask, views of one block are one block."""
    x, y = torch.randn(7, 3, 10, 10, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3
    data = from_arrays(x, y, x, y)
    setup = Setup(Task(wrap(make(), data), data, torch.device("cpu")), FedAvg(), LocalRule())
    model = setup.task.model
    w = model.initial().requires_grad_()
    parts = (w, *model.constants.values(), *model.module.parameters())
    shared = {t.untyped_storage().data_ptr() for t in parts}
    model.train()
    out = model.forward(model.layout.split(w), x[:5].clone(), Noise((0, 0)) if model.random else None)
    losses = setup.task.loss(out, y[:5].clone())
    found = memory.activation_bytes(setup, 5)
    assert found == kept_by((torch.ones(5) * losses).sum(), shared)
    assert found > 5 * 300 * 4
    assert 2 * found - 16 <= memory.activation_bytes(setup, 10) <= 2 * found  # of more samples than there are


def test_a_hundred_clients_of_the_large_resnet_come_in_chunks_that_fit_in_80_gb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sample keeps 10 maps of 32x32x64, 9 of half of that, 9 of a quarter and 9 of an eighth, in float32, besides
    small things; half of the memory is for clients."""
    data = from_arrays(torch.zeros(2, 3, 32, 32), torch.tensor([0, 9]), torch.zeros(2, 3, 32, 32), torch.tensor([0, 9]))
    setup = Setup(Task(build("resnet18_gn_cifar", data, 0), data, torch.device("cpu")), FedAvg(), LocalRule())
    maps = 4 * 32 * 32 * 64 * (10 + 9 / 2 + 9 / 4 + 9 / 8)
    activations = memory.activation_bytes(setup, 50)
    assert 1.0 < activations / (50 * maps) < 1.01
    monkeypatch.setattr(memory, "total_bytes", lambda device: 80 * 10**9)
    chunk = memory.clients_that_fit(setup, 50)
    assert chunk == 40 * 10**9 // (11_173_962 * 4 * 6 + 2 * activations) == 54


def test_a_limit_of_this_process_counts_as_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.cuda.set_per_process_memory_fraction``: the rule of clients at once keeps to it."""
    whole = SimpleNamespace(total_memory=150_000_000_007)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
    for part, bytes_ in ((1.0, 150_000_000_007), (0.5, 75_000_000_003)):
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device, part=part: part)
        assert memory.total_bytes(torch.device("cuda", 0)) == bytes_


@pytest.mark.skipif(not hasattr(memory.allocator(), "malloc_trim"), reason="not glibc's allocator")
def test_memory_that_was_kept_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    memory.keep_pages(torch.device("cpu"))
    blocks = [torch.ones(2**21) for _ in range(20)]  # of 8 MiB
    last = torch.ones(10)  # behind them in memory
    del blocks
    kept = resident()
    memory.release()
    assert kept - resident() > 100 * 2**20
    assert last.sum() == 10
