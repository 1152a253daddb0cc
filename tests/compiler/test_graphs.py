"""Steps in passes around a traced gradient that runs as it is, in float64, against the eager steps."""

import warnings
from functools import partial

import pytest
import torch
from engines.small import largest_gap, simulation, trace
from torch import nn
from torch.fx import Graph, GraphModule

from fedsmoo.algorithms import FedAvg, FedLESAM, FedSMOO
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.oracles import traced
from fedsmoo.engines.oracles.oracle import vmap_oracle
from fedsmoo.engines.oracles.traced import GraphKernels, TracedOracle
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.operators.graph.light import is_light

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


aten, ours = torch.ops.aten, torch.ops.fedsmoo


@pytest.mark.parametrize(
    ("small", "more", "light"),
    [(10, (), True), (11, (), False), (9, (aten.bmm.default,), True), (0, (aten.index_add.default,), False)],
    ids=["a tenth", "more than a tenth", "a product", "an operation of unknown order"],
)
def test_which_graphs_need_no_compiler(small, more, light):
    """An operator moves 1.2 GB, 300 microseconds of a GPU; each small operation takes 3."""
    graph = Graph()
    whole, few = (graph.placeholder(n) for n in ("whole", "few"))
    whole.meta["val"], few.meta["val"] = (torch.empty(n, dtype=torch.uint8, device="meta") for n in (4 * 10**8, 0))
    for target, given in [(ours.conv.default, whole), *[(aten.relu.default, few)] * small, *[(t, few) for t in more]]:
        node = graph.call_function(target, (given, given))
        node.meta["val"] = (given.meta["val"], given.meta["val"]) if given is whole else given.meta["val"]
    assert is_light(GraphModule(nn.Module(), graph)) == light
