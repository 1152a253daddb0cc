"""The recorded step of an oracle that a compiler cannot look into, on the CPU: same numbers as the eager steps."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import Tensor

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.engines.graph import GraphSteps
from fedsmoo.engines.oracles import OpaqueOracle, hand_oracle
from fedsmoo.engines.steps import eager_steps
from fedsmoo.engines.task import Batch, Task

from .small import largest_gap, simulation, trace

FINE = 7  # the last weights are read as they are, the others rounded to bfloat16


class Rounded(OpaqueOracle):
    """Gradients at rounded weights, as the kernels make them, but by the hand-batched model in float64."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.exact = hand_oracle(task).gradient
        self.roundings = 0

    def working(self, w: Tensor) -> Tensor:
        self.roundings += 1
        return w.to(torch.bfloat16)

    def fine(self, w: Tensor) -> Tensor:
        return w[:, -FINE:].contiguous()

    def launch(self, working: Tensor, fine: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.exact(torch.cat([working[:, :-FINE].to(fine.dtype), fine], dim=1), batch)


def run(method: str, recorded: bool, compile: bool = False):
    made = simulation("batched", "mlp", ALGORITHMS[method]())
    oracle = Rounded(made.setup.task)
    made.engine.oracle = oracle
    made.engine.steps = GraphSteps(oracle, compile=compile, capture=True) if recorded else partial(eager_steps, oracle)
    return made, oracle


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedsam", "fedsmoo"])
def test_weights_kept_in_the_kernels_type_follow_the_weights(method):
    eager, _ = run(method, recorded=False)
    recorded, _ = run(method, recorded=True)
    assert largest_gap(trace(eager), trace(recorded)) < 1e-14
    plain = simulation("batched", "mlp", ALGORITHMS[method]())
    assert largest_gap(trace(plain), trace(run(method, recorded=True)[0])) > 1e-5  # the rounding is really there


def test_the_step_rounds_only_what_no_buffer_holds():
    """FedAvg's gradient is at the weights, whose rounded copy the step keeps; SAM's second one is elsewhere."""
    rounds = {}
    for method in ("fedavg", "fedsam"):
        made, oracle = run(method, recorded=True)
        made.advance()
        rounds[method] = oracle.roundings
    assert rounds["fedavg"] == 1  # the buffer itself
    assert rounds["fedsam"] > 1


def test_many_methods_compile_in_one_process(monkeypatch):
    """More recordings than the compiler's limit of recompilations of one function."""
    torch.compiler.reset()
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, fullgraph=True, dynamic=False, backend="eager"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            for method in list(ALGORITHMS)[:12]:
                made, _ = run(method, recorded=True, compile=True)
                made.advance()
                assert made.engine.steps.compile, method
    finally:
        torch.compiler.reset()
