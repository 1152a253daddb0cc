"""What docs/analysis.md says of the final models that campaign/19_models made: see found.py."""

from __future__ import annotations

from typing import Any

import facts as f
import numpy as np

FILE = "gpu/analysis_01_seed3.json"
METHODS = ("fedsmoo", "mofedsam", "scaffold", "fedavg")


def below(one: str, other: str) -> float:
    """On how much of the grid one model's test loss is below another's, in per cent."""
    a, b = (np.array(f.read(FILE)["models"][name]["landscape"]["loss"]) for name in (one, other))
    return 100 * float((a < b).mean())


def final() -> list[Any]:
    models = f.read(FILE)["models"]
    tops = [max(models[name]["hessian"]["eigenvalues"]) for name in METHODS]
    traces = [models[name]["hessian"]["trace"] for name in METHODS]
    assert tops[0] == min(tops)
    assert {below("fedsmoo", other) for other in METHODS[1:]} == {100}
    assert min(traces) == traces[0] < 0
    (samples,) = {models[name]["hessian"]["samples"] for name in METHODS}
    four = "{} for FedSMOO, {} for MoFedSAM, {} for SCAFFOLD and {} for FedAvg"
    return [
        ("(Dirichlet 0.1, a seed of their own, the Hessian on {:,d} training images): the top eigenvalue is "
         + four.replace("{}", "{:.1f}") + ", the trace " + four.replace("{}", "{:.0f}"), samples, *tops, *traces),
        ("FedSMOO's test loss is below FedAvg's on {:.0f}% of the grid, SCAFFOLD's on {:.0f}% and MoFedSAM's on "
         "{:.0f}%; at the centre they are {:.2f}, {:.2f}, {:.2f} and {:.2f}",
         *(below("fedsmoo", other) for other in ("fedavg", "scaffold", "mofedsam")),
         *(models[name]["landscape"]["centre"] for name in ("fedsmoo", "fedavg", "scaffold", "mofedsam"))),
    ]  # fmt: skip
