"""A model with more parameters than a launch of a pass has room for: other steps, the same numbers, and a line."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from engines.small import largest_gap, trace

from fedsmoo.algorithms import SCAFFOLD, FedSMOO

from .test_passes import EQUAL, TOLERANCE, run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="in float64, by the interpreter"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="passes are Triton's"),
]


@pytest.mark.parametrize("method", [SCAFFOLD(), FedSMOO()], ids=lambda m: m.label)
def test_it_says_so_and_trains_the_same_model(method, monkeypatch, device):
    monkeypatch.setattr("fedsmoo.compiler.codegen.BLOCK", 256)
    monkeypatch.setattr("fedsmoo.compiler.codegen.MOST", 1)  # of the two blocks that 285 parameters have
    eager = run(method, False, **EQUAL)
    passed = run(method, True, **EQUAL)
    with pytest.warns(RuntimeWarning) as told:
        found = trace(passed)
    why = "a pass has room for 256 parameters, and the model has 285"
    assert {str(w.message) for w in told if "pass" in str(w.message)} == {
        f"the local step cannot be cut into passes and runs slower: {why}",
        f"the end of a round cannot be one pass and runs slower: {why}",
    }
    assert not any(r.cut for r in passed.engine.stepper.recordings.values())
    assert largest_gap(trace(eager), found) < TOLERANCE
