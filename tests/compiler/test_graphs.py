"""Steps in passes around a traced gradient that runs as it is, in float64, against the eager steps."""

import warnings
from functools import partial

import pytest
import torch
from engines.small import largest_gap, simulation, trace
from torch import nn

from fedsmoo.algorithms import FedAvg, FedLESAM, FedSMOO
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.oracles import traced
from fedsmoo.engines.oracles.oracle import vmap_oracle
from fedsmoo.engines.oracles.traced import GraphKernels, TracedOracle
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.operators.light import is_light
from fedsmoo.operators.trace import traced as graph_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="in float64, by the interpreter")


def run(method, replayed, **settings):
    def engine(setup):
        stepper = partial(ReplayStepper, compile=False) if replayed else EagerStepper
        return Batched(setup, oracle=TracedOracle(vmap_oracle(setup.task)), stepper=stepper)

    return simulation(engine, "cnn_gn", method, rounds=2, cohort=2, **settings)


@pytest.mark.parametrize("method", [FedAvg(), FedSMOO(r=0.2, beta=2.0), FedLESAM(rho=0.2)])
def test_a_gradient_is_taken_where_the_weights_lie_or_elsewhere(method, device, monkeypatch):
    """FedAvg's is at the weights themselves, of which there are two buffers; SAM's at points that passes write."""
    monkeypatch.setattr(traced, "is_light", lambda graph: True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the (local step|model)")
        eager, passed = (run(method, p, local_epochs=1) for p in (False, True))
        assert largest_gap(trace(eager), trace(passed)) < 1e-10
    recordings = passed.engine.stepper.recordings.values()
    assert all(isinstance(r.groups[0].passes.kernels, GraphKernels) for r in recordings)
    assert not any(r.groups[0].compiles for r in recordings)


def network(norm):
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(16, 16, 3, 1, 1, bias=False), norm())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


@pytest.mark.parametrize(
    ("norm", "samples", "light"),
    [(partial(nn.GroupNorm, 2, 16), 100, True), (partial(nn.GroupNorm, 2, 16), 2, False), (nn.GELU, 100, False)],
    ids=["large maps", "small maps", "much that a compiler fuses"],
)
def test_which_graphs_need_no_compiler(norm, samples, light):
    module = network(norm)
    parts = dict(module.named_parameters())
    sizes = [p.numel() for p in parts.values()]

    def loss(parts, x):
        return torch.func.functional_call(module, parts, (x,)).sum()

    def flat(w, x):
        given = {n: v.view(2, *p.shape) for (n, p), v in zip(parts.items(), w.split(sizes, 1), strict=True)}
        grads, losses = torch.func.vmap(torch.func.grad_and_value(loss))(given, x)
        return torch.cat([g.reshape(2, -1) for g in grads.values()], -1), losses

    with torch.device("meta"):
        graph = graph_of(flat, torch.empty(2, sum(sizes)), torch.empty(2, samples, 16, 64, 64))
    assert is_light(graph) == light
