"""The pass that does clients again ends the step: it adds up partial sums as a fold does, to the bit, in its place."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedsmoo.algorithms import FedAvg
from fedsmoo.compiler.schedule import LastPass, schedule
from fedsmoo.core import norm
from fedsmoo.kernels.runtime import noting

from .test_passes import EQUAL, METHODS, compared, run, small_blocks

__all__ = ["small_blocks"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="in float64, by the interpreter")


@dataclass(frozen=True)
class Held(FedAvg):
    """A pull of at most some length, which is clipped beside the gradient: two factors, that wait for a norm each."""

    def pull(self, w, down):
        way = w - 2 * down.w
        return way * (0.5 / norm(way)).clamp(max=1.0)


# A method and a rule, and how many factors are speculated to be one: for all clients in vain, or for none.
ENDS = {
    "all": (METHODS["fedavg"], {"clip": 1e-3}, 1),
    "none": (METHODS["fedsmoo"], {"clip": 1e3}, 1),
    "two": (Held(), {"clip": 0.5, "scope": "released"}, 2),
}


@pytest.fixture(autouse=True)
def few_parts(device, small_blocks, monkeypatch):
    """Five blocks of a client then, whose partial sums are added up four at a time."""
    monkeypatch.setattr("fedsmoo.compiler.codegen.BLOCK", 64)
    monkeypatch.setattr("fedsmoo.compiler.codegen.PARTS", 4)


@pytest.mark.parametrize("name", ENDS)
def test_sums_are_those_of_a_fold(name):
    from fedsmoo.compiler.codegen import VectorPass, fold

    method, rule, count = ENDS[name]
    made = run(method, True, rule=rule, **EQUAL)
    made.advance()
    (recording,) = made.engine.stepper.recordings.values()
    passes = recording.groups[0].passes
    last = schedule(passes.flow)[-1]
    assert isinstance(last, LastPass)
    assert len(last.sums) == len(last.factors) == count
    rows, blocks = [passes.rows[n] for n in last.sums], VectorPass.blocks(passes.size)
    assert blocks == 5
    sums = passes.tensors["sums"]
    folded = sums.clone().index_fill_(0, torch.tensor(rows), torch.nan)
    fold(passes.tensors | {"sums": folded}, passes.clients, blocks, rows[0], count, close=False)
    assert torch.equal(folded, sums)
    parts = passes.tensors["partials"][: count * passes.clients * blocks].view(count, passes.clients, blocks)
    torch.testing.assert_close(sums[rows], parts.sum(-1))


@pytest.mark.parametrize("name", ENDS)
def test_steps_and_losses_are_the_eager_ones(name):
    method, rule, _ = ENDS[name]
    compared(method, rule=rule, **EQUAL)


@pytest.mark.parametrize(
    ("rule", "kernels"),
    [({"clip": 1.0}, ["vector_pass", "vector_pass"]), ({"clip": None}, ["vector_pass", "fold_kernel"])],
)
def test_a_step_ends_in_two_launches(rule, kernels):
    made = run(METHODS["fedavg"], True, rule=rule, **EQUAL)
    made.advance()
    (recording,) = made.engine.stepper.recordings.values()
    with noting() as noted:
        recording.groups[0].passes.step(odd=False, last=True)
    assert [kernel.__name__ for kernel, *_ in noted] == kernels
