"""FedRep with a local optimiser: what rests is not remembered, as with one of PyTorch's optimisers for each part."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedsmoo.runs.build import assemble
from fedsmoo.runs.settings.merge import make_config

from .test_optimisers import MADE

ONE = {
    "model": "mlp", "clients": 1, "cohort": 1, "rounds": 3, "local_steps": 7, "batch_size": 20, "dtype": "float64",
    "device": "cpu", "partition": "iid", "clip": None, "lr": 0.05, "weight_decay": 0.02, "algorithm": "fedrep",
    "algorithm_options": {"head_share": 0.6},
}  # fmt: skip


def part_by_part(make, stays: bool) -> torch.Tensor:
    """The client's model: in steps 0 to 4 the head is trained by its optimiser, in 5 and 6 the body by another one."""
    run = assemble(make_config(ONE))
    model, data = run.setup.task.model, run.setup.task.data
    parts = {n: v.clone().requires_grad_() for n, v in model.layout.split(run.server.w).items()}
    *body, weight, bias = parts.values()
    for number in range(3):
        if number == 0 or not stays:
            head_steps, body_steps = make([weight, bias]), make(body)
        for k, rows in enumerate(run.plan(number, [0]).index[:, 0]):
            optimiser = head_steps if k < 5 else body_steps
            optimiser.param_groups[0]["lr"] = 0.05 * 0.998**number
            loss = F.cross_entropy(model.forward(parts, run.setup.task.inputs(data.x_train[rows])), data.y_train[rows])
            for v in parts.values():
                v.grad = None
            loss.backward()
            optimiser.step()
    return model.layout.join({n: v.detach() for n, v in parts.items()})


@pytest.mark.filterwarnings("ignore:.*has personal models")
@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("state", ["round", "stays"])
@pytest.mark.parametrize("name", MADE)
def test_each_part_has_an_optimiser_of_its_own(name, state, engine):
    run = assemble(make_config(ONE, {"local_optimizer": name, "state": state, "engine": engine})).run()
    found = run.client_state(0)["v"]
    assert float((found - part_by_part(MADE[name], state == "stays")).abs().max()) < 1e-12
