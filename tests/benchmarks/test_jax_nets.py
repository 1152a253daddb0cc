"""The networks and the round that JAX trains beside ours are PyTorch's; where JAX and DrJAX are installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rivals import common
from benchmarks.rivals.tasks import TASKS, write_workload

jax = pytest.importorskip("jax")
drjax_worker = pytest.importorskip("benchmarks.rivals.workers.drjax_worker", exc_type=ImportError)
jax_nets = pytest.importorskip("benchmarks.rivals.workers.jax_nets", exc_type=ImportError)

SMALL = {
    "paper": {"samples": 48, "clients": 4, "cohort": 2, "local_epochs": 1, "batch_size": 8},
    "fedjax": {"samples": 60, "clients": 4, "cohort": 2, "batch_size": 5},
}


class Exact(common.Workload):
    """A workload in float64: in float32 a ReLU that is nearly zero may fall to either side."""

    def inputs(self, x: Tensor) -> Tensor:
        return super().inputs(x).double()

    def module(self) -> nn.Module:
        return super().module().double().eval()


@pytest.fixture(params=["paper", "fedjax"])
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exact]:
    """A small workload of the GPU's, without dropout, for which the two draw different masks."""
    write_workload(tmp_path / "work.npz", TASKS[request.param] | {"seed": 0} | SMALL[request.param])
    monkeypatch.setenv("RIVALS_WORKLOAD", str(tmp_path / "work.npz"))
    values = vars(common.workload.__wrapped__())
    found = Exact(**values | {"start": {n: v.double() for n, v in values["start"].items()}})
    for used in (jax_nets, drjax_worker):
        monkeypatch.setattr(used, "workload", lambda: found)
    monkeypatch.setattr(jax_nets, "drop", lambda rng, x, rate: x)
    with jax.enable_x64(True):
        yield found


def apart(found: dict[str, Any], wanted: dict[str, Tensor]) -> float:
    """The distance of two sets of vectors, by the length of the second; the largest of all."""
    assert found.keys() == wanted.keys()
    pairs = [(np.asarray(found[n]), wanted[n].detach().numpy()) for n in wanted]
    assert all(a.dtype == b.dtype == np.float64 for a, b in pairs)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def test_outputs_and_gradients_are_those_of_pytorch(work: Exact) -> None:
    model, x, y = work.module(), work.inputs(work.x_train)[:8], work.y_train[:8]
    out = model(x)
    F.cross_entropy(out, y).backward()
    p, key = jax_nets.first(), jax.random.key(0)
    assert apart({"out": jax_nets.forward(p, x.numpy(), key)}, {"out": out}) < 1e-12
    gradient = jax.jit(jax.grad(jax_nets.loss))(p, x.numpy(), y.numpy(), key)
    assert apart(gradient, {n: q.grad for n, q in model.named_parameters()}) < 1e-12


@pytest.mark.parametrize("turn", [False, True])
def test_a_round_is_that_of_a_plain_loop(work: Exact, turn: bool) -> None:
    index, weight = drjax_worker.batches(np.random.default_rng(0))
    keys = jax.random.split(jax.random.key(0), len(index))
    found = drjax_worker.program(turn)(jax_nets.first(), index, weight, keys, *jax_nets.samples())
    trained = []
    for mine, counts in zip(index, weight, strict=True):
        model = work.module()
        optimiser = work.optimiser(model.parameters())
        for at, w in zip(mine, counts, strict=True):
            at = torch.from_numpy(at[w > 0]).long()
            optimiser.zero_grad()
            F.cross_entropy(model(work.inputs(work.x_train)[at]), work.y_train[at]).backward()
            if work.settings["clip"] is not None:
                nn.utils.clip_grad_norm_(model.parameters(), work.settings["clip"])
            optimiser.step()
        trained.append(dict(model.named_parameters()))
    moved = {n: torch.stack([t[n] for t in trained]).mean(0) - v for n, v in work.start.items()}
    # PyTorch clips by the norm and a millionth.
    assert apart({n: np.asarray(v) - work.start[n].numpy() for n, v in found.items()}, moved) < 1e-6


def test_products_in_bf16_have_weights_and_gradients_of_float32(work: Exact) -> None:
    with jax.enable_x64(False):
        (x, y), p, key = jax_nets.samples(), jax_nets.first(), jax.random.key(0)
        exact = jax_nets.forward(p, x[:8], key)
        work.settings["precision"] = "bf16"
        rounded = jax_nets.forward(p, x[:8], key)
        gradient = jax.jit(jax.grad(jax_nets.loss))(p, x[:8], y[:8], key)
        text = str(jax.make_jaxpr(jax_nets.forward)(p, x[:8], key))
    assert {v.dtype for v in (exact, rounded, *gradient.values())} == {np.dtype(np.float32)}
    assert 1e-4 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 5e-2
    products = [line for line in text.splitlines() if "= conv_general_dilated" in line or "= dot_general" in line]
    assert products
    assert all(":bf16[" in line for line in products)


def test_a_gpu_that_is_not_there_is_missed(work: Exact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(SystemExit, match="JAX finds no GPU"):
        jax_nets.begin()
