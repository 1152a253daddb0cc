"""Constant buffers are part of a model: on every engine, in exports, and in what runs may share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsmoo import simulate
from fedsmoo.core import FedsmooError
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.oracles.oracle import hand_oracle, single_oracle, vmap_oracle
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models.base import FlatModel
from fedsmoo.models.buffers import cast, persistent
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation
from fedsmoo.sweeps.pack import Pack

CPU = torch.device("cpu")
FEW: dict[str, Any] = {"clients": 3, "cohort": 3, "rounds": 2, "local_steps": 2, "batch_size": 4, "device": "cpu"}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


X = torch.randn(24, 4, generator=generator())
Y = torch.arange(24) % 3
DATA = (X[:18], Y[:18], X[18:], Y[18:])


class Table(nn.Module):
    """Every kind of constant: floats, whole numbers, truths, complex numbers, one that is shared, one not saved."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.places = nn.Embedding(4, 4)
        self.out = nn.Linear(4, 3)
        self.register_buffer("scale", 1 + torch.rand(4, generator=generator(seed)))
        self.register_buffer("ids", torch.arange(4).expand(1, -1))
        self.register_buffer("mask", torch.tensor([True, True, False, True]), persistent=False)
        self.register_buffer("turn", torch.polar(torch.ones(2), torch.tensor([0.5, 2.0])))
        self.register_buffer("absent", None)
        self.out.register_buffer("shared", self.scale)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(torch.randn(p.shape, generator=generator(7 + i)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + (self.places(self.ids) * self.mask).sum((0, 1))
        turned = torch.view_as_real(torch.view_as_complex(x.unflatten(1, (2, 2)).contiguous()) * self.turn).flatten(1)
        return self.out(turned * self.scale * self.out.shared)


class ByHand(Table):
    """The same, with a hand-batched forward that reads one buffer as it is given and the others from the module."""

    def batched(self, p: Any, x: Tensor) -> Tensor:
        assert p["scale"].shape == (len(x), 4)
        x = x + (p["places.weight"][:, self.ids[0]] * self.mask).sum(1)[:, None]
        turned = torch.view_as_real(torch.view_as_complex(x.unflatten(2, (2, 2)).contiguous()) * self.turn).flatten(2)
        return torch.baddbmm(p["out.bias"][:, None], turned * p["scale"][:, None] ** 2, p["out.weight"].mT)


def test_gradients_with_constants_are_the_module_s_own() -> None:
    data = from_arrays(*DATA)
    module, truth = ByHand(), Table()
    cast(truth, torch.float64)
    flat = FlatModel(module)
    assert set(flat.layout.shapes) == {"places.weight", "out.weight", "out.bias"}
    flat.place(CPU, torch.float64)
    task = Task(flat, data, CPU, torch.float64)
    assert flat.random is False
    w = flat.initial().double() + 0.1 * torch.randn(2, flat.layout.size, generator=generator(1), dtype=torch.float64)
    batch = task.batch(torch.tensor([[0, 1], [2, 3]]), torch.full((2, 2), 0.5, dtype=torch.float64))
    by_hand, by_vmap = hand_oracle(task)(w, batch)[0], vmap_oracle(task)(w, batch)[0]
    for c in range(2):
        state = flat.state_dict(w[c])
        truth.load_state_dict(state)
        truth.zero_grad()
        (
            batch.weight[c] * nn.functional.cross_entropy(truth(batch.x[c]), batch.y[c], reduction="none")
        ).sum().backward()
        expected = flat.layout.join({n: p.grad for n, p in truth.named_parameters()})
        alone = single_oracle(task)(w[c], Batch(batch.x[c], batch.y[c], batch.weight[c]))[0]
        assert float(expected.norm()) > 0.1
        for gradient in (by_hand[c], by_vmap[c], alone):
            assert float((gradient - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_engines_agree_and_exports_have_the_constants(dtype: str) -> None:
    mine = ByHand()
    runs = {e: simulate(mine, DATA, "fedavg", engine=e, dtype=dtype, **FEW) for e in ("serial", "vmap", "batched")}
    assert runs["batched"].simulation.engine.name == "batched"
    for result in runs.values():
        torch.testing.assert_close(result.server.w, runs["serial"].server.w, rtol=1e-5, atol=1e-6)
        model = result.model
        assert torch.equal(model.scale, mine.scale.to(model.scale))
        assert torch.equal(model.out.shared, model.scale)
        assert model.scale.dtype == getattr(torch, dtype)
        assert torch.equal(model.ids, mine.ids)
        assert model.ids.dtype == torch.int64
        assert torch.equal(model.mask, mine.mask)
        assert model.mask.dtype == torch.bool
        assert torch.equal(model.turn, mine.turn.to(model.turn))
        assert model.turn.is_complex()
        flat = result.simulation.setup.task.model
        state = flat.state_dict(result.server.w)
        assert set(state) == set(mine.state_dict())
        assert "mask" not in state
        Table().load_state_dict(state)
        assert torch.equal(flat.flatten(state), result.server.w)
        x = X[:5].to(model.scale.dtype)
        assert torch.equal(model(x), flat.forward(flat.layout.split(result.server.w), x))
    assert mine.scale.dtype == torch.float32  # the caller's own is untouched


def test_recorded_steps_read_the_constants() -> None:
    """The buffers of captured steps, on a CPU."""
    run = assemble(Config(partition="iid", engine="serial", **FEW), data=from_arrays(*DATA), model=FlatModel(Table()))
    engine = Batched(run.setup, stepper=lambda oracle: ReplayStepper(oracle, compile=False))
    other = Simulation(run.setup, engine, run.training, run.indices)
    for _ in range(2):
        run.advance(), other.advance()
    torch.testing.assert_close(run.server.w, other.server.w, rtol=1e-5, atol=1e-6)


def test_runs_in_one_batch_must_share_their_constants() -> None:
    config = Config(partition="iid", engine="vmap", **FEW)

    def pack(*seeds: int) -> Pack:
        return Pack([assemble(config, data=from_arrays(*DATA), model=FlatModel(Table(s))) for s in seeds])

    assert len(pack(0, 0).run()[1].history) == 2
    with pytest.raises(FedsmooError, match=r"different frozen parameters.*--pack 1"):
        pack(0, 1).run()


class Counting(nn.Module):
    """A buffer that changes: when, says ``rule``; by assignment or in place."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule, self.calls = rule, 0
        self.out = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.rule == "evaluation" and not self.training:
            self.seen.add_(1)
        if self.rule == "late" and self.calls > 8:
            self.seen.add_(1)
        if self.rule == "late, assigned" and self.calls > 8:
            self.seen = self.seen + 1
        return self.out(x)


@pytest.mark.parametrize("rule", ["evaluation", "late", "late, assigned"])
def test_buffers_that_change_when_nobody_expects_it_are_refused(rule: str) -> None:
    text = {"evaluation": "'seen' changes in evaluation"}.get(rule, "'seen' changes in some passes only")
    with pytest.raises(FedsmooError, match=text) as caught:
        simulate(Counting(rule), DATA, "fedavg", engine="serial", **FEW)
    assert "\n" not in str(caught.value)


class Filled(nn.Module):
    """Fills a buffer in the first pass, as ConViT does with the distances of its patches."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if len(self.steps) != x.shape[1]:
            self.steps = torch.arange(x.shape[1]) / 4
        return self.out(x * self.steps)


def test_a_buffer_that_the_first_pass_fills_is_a_constant_once_it_is_filled() -> None:
    net, plain = Filled(), nn.Linear(4, 3)
    plain.load_state_dict(net.out.state_dict())
    with pytest.raises(FedsmooError, match=r"'steps' changes in evaluation.*call the model once on samples before"):
        simulate(net, DATA, "fedavg", **FEW)
    net(X[:1])
    scaled = tuple(d * torch.arange(4) / 4 if d.is_floating_point() else d for d in DATA)
    found, truth = (simulate(m, d, "fedavg", **FEW).server.w for m, d in ((net, DATA), (plain, scaled)))
    assert float((found - truth).abs().max()) < 1e-6


def test_plain_attributes_stay_what_they_are() -> None:
    module = nn.Linear(4, 3)
    module.note = torch.zeros(2)
    assert FlatModel(module).buffers == ()
    assert persistent(module) == []
    assert len(simulate(module, DATA, "fedavg", **FEW).history) == 2
