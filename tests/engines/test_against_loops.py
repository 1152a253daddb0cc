"""Methods of every kind of the contract, against loops that are written out, on every engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kinds
import pytest
import torch
from kinds import Ditto, Heads, Median, Numbers, Stretched
from torch import Tensor

from fedsmoo.algorithms.quantised import Quantised
from fedsmoo.core import Algorithm, FedsmooError, Vectors, derived
from fedsmoo.core.server import Replies, round_of, server_step
from fedsmoo.engines.client_state import memory
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.sweeps.pack import Pack, assemble_pack

from .small import Trace, largest_gap, simulation, trace

TOLERANCE = 1e-10
KINDS = ["serial", "vmap", "hand", "chunk1", "chunk2", "recorded", "recorded2"]


class Literal:
    """A federation as a page of loops: Python numbers, one client after the other, gradients by ``autograd``."""

    def __init__(self, method: Algorithm, weighted: bool) -> None:
        self.run = simulation("serial", "mlp", method, weighted=weighted)  # for its data, cohorts and batches
        self.srv = {n: v.clone() for n, v in self.run.server.items()}
        self.own: dict[int, dict[str, Tensor]] = {}

    def clients(self) -> list[Any]:
        """Who takes part in the next round: number, samples, steps, weight, and a step's gradient at a point."""
        run, work = self.run, self.run.prepare()
        sizes = [len(run.indices[i]) if run.training.weighted else 1 for i in work.clients]
        out = []
        for c, i in enumerate(work.clients):
            steps = int(work.plan.steps[c])
            grads = [self.gradient(work.plan.index[k, c, : work.plan.count[k, c]]) for k in range(steps)]
            out.append(SimpleNamespace(i=i, samples=len(run.indices[i]), weight=sizes[c] / sum(sizes), grads=grads))
        self.lr = 0.2 * 0.9 ** len(run.history)
        run.advance()
        return out

    def gradient(self, index: Any) -> Callable[[Tensor], Tensor]:
        task = self.run.setup.task

        def at(v: Tensor) -> Tensor:
            v = v.clone().requires_grad_()
            out = task.model.forward(task.model.layout.split(v), task.data.x_train[index])
            return torch.autograd.grad(torch.nn.functional.cross_entropy(out, task.data.y_train[index]), v)[0]

        return at

    def stepped(self, w: Tensor, d: Tensor) -> Tensor:
        return w - self.lr * (d * min(1.0, 1.0 / float(d.norm())) + 0.01 * w)

    def state(self) -> dict[str, Tensor]:
        rows = {f"client {i} {n}": v for i, row in sorted(self.own.items()) for n, v in row.items()}
        return {f"server {n}": v for n, v in self.srv.items()} | rows


def numbers(f: Literal) -> None:
    cohort = f.clients()
    w, far, srv = torch.zeros_like(f.srv["w"]), 0.0, f.srv
    for c in cohort:
        mine, end = f.own.setdefault(c.i, {"v": torch.zeros(1, dtype=torch.float64)}), srv["w"]
        for grad in c.grads:
            end = f.stepped(end, (1 + srv["t"].item()) * grad(end))
        mine["v"] = mine["v"] + 1
        w += c.weight * (srv["w"] + (end - srv["w"]) / mine["v"].item())
        far += c.weight * len(c.grads) * float((end - srv["w"]).norm())
    if cohort:
        t = torch.tensor([far / (1 + far)], dtype=torch.float64)
        f.srv = {"w": w, "t": t, "s": srv["s"] + len(cohort)}


def stretched(f: Literal) -> None:
    cohort, w = f.clients(), f.srv["w"]
    d, far = torch.zeros_like(w), 0.0
    for c in cohort:
        end = w
        for grad in c.grads:
            end = f.stepped(end, grad(end))
        d += c.weight * (end - w)
        far += c.weight * sum(x * x for x in (end - w).tolist())
    if cohort:
        f.srv["w"] = w + max(1.0, far / (2 * (sum(x * x for x in d.tolist()) + 1e-3))) * d


def median(f: Literal) -> None:
    cohort, w = f.clients(), f.srv["w"]
    ends, e, z = [], torch.zeros_like(w), 0.0
    for c in cohort:
        end = w
        for grad in c.grads:
            end = f.stepped(end, grad(end))
        ends.append(end.tolist())
        e += c.weight * (end - w)
        z += c.weight * c.i * c.samples * len(c.grads) * math.dist(end.tolist(), w.tolist())
    if cohort:
        n = len(ends)
        middle = [sorted(column)[(n - 1) // 2] / 2 + sorted(column)[n // 2] / 2 for column in zip(*ends, strict=True)]
        f.srv = {"w": torch.tensor(middle, dtype=w.dtype), "e": e, "z": torch.tensor([z + n], dtype=w.dtype)}


def ditto(f: Literal) -> None:
    cohort, w = f.clients(), f.srv["w"]
    mean = torch.zeros_like(w)
    for c in cohort:
        end, v = w, f.own.get(c.i, {"v": w})["v"]
        for grad in c.grads:
            end, v = f.stepped(end, grad(end)), v - f.lr * (grad(v) + 0.1 * (v - w))
        mean += c.weight * end
        f.own[c.i] = {"v": v}
    if cohort:
        f.srv["w"] = mean


def heads(f: Literal) -> None:
    cohort, w, start = f.clients(), f.srv["w"], f.run.setup.task.model.initial()
    kept = torch.tensor([name.startswith("fc3.") for name, n in PARAMETERS for _ in range(n)])
    mean = torch.zeros_like(w)
    for c in cohort:
        mine = f.own.get(c.i, {"v": w})["v"]
        end = torch.where(kept, mine, w)
        for grad in c.grads:
            end = f.stepped(end, grad(end))
        f.own[c.i] = {"v": end}
        mean += c.weight * end
    if cohort:
        f.srv["w"] = torch.where(kept, start.double(), mean)


SHAPES = {"fc1.weight": 36 * 6, "fc1.bias": 6, "fc2.weight": 6 * 6, "fc2.bias": 6, "fc3.weight": 6 * 3, "fc3.bias": 3}
PARAMETERS = list(SHAPES.items())  # of the MLP here

CASES = {
    "numbers": (Numbers(), numbers),
    "stretched": (Stretched(), stretched),
    "median": (Median(), median),
    "ditto": (Ditto(), ditto),
    "heads": (Heads(), heads),
}


def written_out(name: str, weighted: bool) -> Trace:
    method, advance = CASES[name]
    literal = Literal(method, weighted)
    out = []
    for _ in range(literal.run.training.rounds):
        advance(literal)
        out.append(literal.state())
    return out


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_is_its_loop_on_every_engine(name: str, weighted: bool) -> None:
    truth = written_out(name, weighted)
    assert any(k.startswith("server") and float((truth[0][k] - truth[-1][k]).abs().max()) > 1e-3 for k in truth[0])
    for kind in KINDS:
        found = trace(simulation(kind, "mlp", CASES[name][0], weighted=weighted))
        for state in found:
            state.pop("loss, drifts")
        assert largest_gap(found, truth) < TOLERANCE * (1e3 if name == "median" else 1), kind


def test_the_server_sees_replies_in_the_order_of_the_cohort() -> None:
    """Whatever the engine, row c is the reply of the c-th client."""
    seen: dict[str, list[Vectors]] = {}

    class Watched(Median):
        def combine(self, srv, rows, weights, rnd):
            seen.setdefault(kind, []).append(rows.replace(i=rnd.client, n=rnd.samples, weight=weights, steps=rnd.steps))
            assert rnd.n == len(rows.w)
            return super().combine(srv, rows, weights, rnd)

    for kind in KINDS:
        run = simulation(kind, "mlp", Watched(), weighted=True)
        run.run()
        assert [v.i[:, 0].tolist() for v in seen[kind]] == [r.cohort for r in run.history if r.cohort]
        for got, want in zip(seen[kind], seen["serial"], strict=True):
            for name, v in want.items():
                torch.testing.assert_close(getattr(got, name), v, rtol=0, atol=1e-12)
    assert max(len(v.w) for v in seen["serial"]) > 2


def test_what_is_combined_must_be_what_is_declared() -> None:
    class Wrong(Median):
        def combine(self, srv, rows, weights, rnd):
            return Vectors(w=rows.w.mean(0))

    class Wide(Median):
        def combine(self, srv, rows, weights, rnd):
            return rows

    for method, says in ((Wrong(), "returns w, but rows declares w, r"), (Wide(), r"returns \(2, 3\) numbers as w")):
        server = method.init(torch.zeros(3))
        rows, weights = Vectors(w=torch.ones(2, 3), r=torch.ones(2, 1)), [0.5, 0.5]
        settings = simulation("serial", "mlp", Median()).training
        rnd, replies = round_of(settings, 0, [1, 1], weights, 1.0), Replies(rows, [0, 1], [4, 4], [1, 1], weights)
        with pytest.raises(FedsmooError, match=says):
            server_step(method, server, Vectors(g=torch.ones(3)), rnd, 3, 1.0, replies)


def test_replies_that_would_fill_the_memory_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulation("hand", "mlp", Median())
    need = 3 * 8 * (run.setup.task.model.layout.size + 1)
    monkeypatch.setattr(memory, "total_bytes", lambda device: 4 * need)
    simulation("hand", "mlp", Median())  # three at a time fit
    with pytest.raises(FedsmooError, match=r"every reply: those of 4 clients.*smaller cohort"):
        simulation("hand", "mlp", Median()).run()  # of Bernoulli cohorts, one is larger
    monkeypatch.setattr(memory, "total_bytes", lambda device: 4 * need - 4)
    with pytest.raises(FedsmooError, match="every reply: those of 3 clients"):
        simulation("hand", "mlp", Median())
    simulation("hand", "mlp", Stretched())  # whose server needs no reply by itself


def test_masks_are_at_hand_and_neither_sent_nor_kept() -> None:
    seen: dict[str, tuple[str, ...]] = {}

    class Watched(Heads):
        masks = derived(lambda self: {"head": self.head, "bias": "*.bias, fc1.b*"})
        stays = ("head",)

        def sent(self, srv):
            seen["srv"] = srv.names()
            return super().sent(srv)

        def aggregate(self, srv, mean, rnd):
            assert torch.equal(mean.w[srv.head > 0], srv.w[srv.head > 0])  # did not travel
            seen["aggregate"], seen["bias"] = srv.names(), srv.bias.tolist()
            return super().aggregate(srv, mean, rnd)

    run = simulation("hand", "mlp", Watched())
    run.run()
    assert seen["srv"] == seen["aggregate"] == ("w", "head", "bias")
    assert seen["bias"] == [float(name.endswith("bias")) for name, n in PARAMETERS for _ in range(n)]
    assert run.server.names() == ("w",)
    assert {n for _, row in run.engine.table.items() for n in row} == {"v"}
    going = 37 * 6 + 7 * 6
    assert [(r.bytes_up, r.bytes_down) for r in run.history] == [(8 * going * len(r.cohort),) * 2 for r in run.history]


def test_a_pattern_that_matches_nothing_is_refused_with_a_suggestion() -> None:
    with pytest.raises(FedsmooError, match=r"unknown parameter 'fc4\.\*': did you mean 'fc3\.\*'\? Known: fc1\.\*, "):
        simulation("serial", "mlp", Heads(head="fc1.*,fc4.*"))


def test_what_stays_does_not_go_with_rounding() -> None:
    with pytest.raises(FedsmooError, match="Heads has parameters that stay at the clients: send its vectors whole"):
        Quantised(Heads(), "int8")


@pytest.mark.parametrize("name", ["Numbers", "Median", "Ditto", "Heads"])
def test_runs_that_share_a_batch_are_the_runs_alone(name: str) -> None:
    spec = f"{Path(kinds.__file__)}:{name}"
    base = {"model": "mlp", "dataset": "digits", "rounds": 3, "clients": 8, "cohort": 3, "local_steps": 2}
    base |= {"dtype": "float64", "device": "cpu", "engine": "batched", "weighted": True}
    configs = [Config(**base, algorithm=spec, seed=seed, lr=0.1 * (1 + seed)) for seed in (0, 1)]
    for packed, config in zip(Pack(assemble_pack(configs)).run(), configs, strict=True):
        alone = assemble(config.replace(engine="serial")).run()
        for n, v in alone.server.items():
            torch.testing.assert_close(getattr(packed.server, n), v, rtol=1e-10, atol=1e-10)
        rows = dict(packed.simulation.engine.table.items())
        for i, row in alone.simulation.engine.table.items():
            for n, v in row.items():
                torch.testing.assert_close(rows[i][n], v, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_rounding_on_the_wire_leaves_rules_what_clients_meant(kind: str) -> None:
    """Clients send rounded changes; a rule over replies sees models."""
    exact, rounded = (trace(simulation("hand", "mlp", m)) for m in (Median(), Quantised(Median(), kind)))
    for a, b in zip(exact, rounded, strict=True):
        assert float((a["server w"] - b["server w"]).abs().max()) < (1e-3 if kind == "fp16" else 2e-2)
    assert float((exact[-1]["server w"] - exact[0]["server w"]).abs().max()) > 0.1
