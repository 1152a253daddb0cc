"""Batches of a round: each pass has every sample once, none that is held out, and takes no more memory than is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmoo import FedsmooError, simulate
from fedsmoo.data.batches.augment import drawing
from fedsmoo.data.batches.plan import make_plan, merge, plan_bytes
from fedsmoo.data.division.holdout import hold_out
from fedsmoo.data.division.partition import Dirichlet
from fedsmoo.engines.client_state import memory
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_each_pass_has_every_sample_of_a_client_once_and_none_that_is_held_out(data: st.DataObject) -> None:
    n, m, batch = (data.draw(st.integers(lo, hi)) for lo, hi in ((30, 90), (1, 5), (1, 20)))
    seed, share, labels = data.draw(st.integers(0, 2**62)), data.draw(st.sampled_from([0.2, 0.5])), np.arange(n) % 4
    clients = Dirichlet(0.3, replacement=data.draw(st.booleans())).split(labels, 4, m, seed)
    kept, held = hold_out(clients, share, seed)
    for mine, all_of_it in zip(kept, clients, strict=True):
        assert not np.isin(mine, held).any()
        assert mine.tolist() == [i for i in all_of_it.tolist() if i not in set(held.tolist())]
    epochs = data.draw(st.one_of(st.none(), st.integers(1, 3)))
    steps = None if epochs else data.draw(st.integers(1, 30))
    width = min(batch, max(map(len, kept)))
    plan = make_plan(seed, 2, range(m), kept, batch, epochs, steps, width=width)
    for c, mine in enumerate(kept):
        batches = [i[:count] for i, count in zip(plan.index[:, c], plan.count[:, c], strict=True) if count]
        per_pass = -(-len(mine) // batch)
        assert len(batches) == (steps or (epochs or 0) * per_pass)
        assert plan.steps[c] == len(batches)
        for k in range(0, len(batches) - per_pass + 1, per_pass):
            assert sorted(np.concatenate(batches[k : k + per_pass])) == sorted(mine)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize(("epochs", "steps"), [(3, None), (None, 7)])
def test_a_plan_takes_no_more_than_is_told(augment: bool, epochs: int | None, steps: int | None) -> None:
    indices = [np.arange(n) for n in (5, 40, 23)]
    draw = drawing(32) if augment else None
    for batch in (1, 8, 100):
        plan = make_plan(0, 0, range(3), indices, batch, epochs, steps, draw)
        drawn = sum(d.nbytes for d in (plan.draws or {}).values())
        told = plan_bytes([5, 40, 23], 3, batch, epochs, steps, augment)
        assert plan.index.nbytes + plan.count.nbytes + drawn <= told
        assert told <= 10**6  # and nothing is refused that takes little


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"local_epochs": 10**11}, r"GB: lower local_epochs \(now 100000000000\) or the cohort"),
        ({"local_steps": 99_999_999_999}, r"GB: lower local_steps \(now 99999999999\) or the cohort"),
        ({"clients": 10**12}, "clients is 1000000000000: to divide samples of 10 classes among them takes 7.2e"),
    ],
)
def test_a_round_that_cannot_fit_is_refused_before_it_is_planned(change: dict[str, Any], says: str) -> None:
    with pytest.raises(FedsmooError, match=says):
        assemble(Config(algorithm="fedavg", model="softmax", **change))


def test_draws_for_batches_larger_than_any_client_has_samples_are_counted() -> None:
    memory.refuse_too_large_plan([50], 1, 10**12, 1, None, augment=False)  # one batch of all samples
    with pytest.raises(FedsmooError, match=r"half of the memory is .* GB: lower batch_size \(now 1000000000000\)$"):
        memory.refuse_too_large_plan([50], 1, 10**12, 1, None, augment=True)


CLIENTS = [np.arange(0, 9), np.arange(9, 15), np.arange(15, 20)]


def test_padding_is_of_the_client_s_own_samples() -> None:
    short, long = (make_plan(0, 0, [1, 2], CLIENTS, size, epochs) for size, epochs in ((2, 1), (4, 3)))
    for plan in (short, long, merge([short, long])):
        for c in range(plan.index.shape[1]):
            assert set(plan.index[:, c].flatten()) <= set(CLIENTS[1 + c % 2])


def test_what_overflows_on_a_sample_of_others_does_not_reach_a_client() -> None:
    """Shorter batches were filled with sample 0 of the data, whose gradient times 0 was NaN for everybody."""

    class Squares(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.tanh(super().forward(x)) * x[:, :3].square()).clamp(-5, 5)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((26, 4)), rng.integers(3, size=26)
    x[0] = 1e200
    torch.manual_seed(0)
    net, found = Squares(4, 3), []
    for engine in ("serial", "vmap"):
        result = simulate(
            net, (x[:20], y[:20], x[20:], y[20:]), "fedavg", client_indices=CLIENTS, cohort=2, rounds=2, local_epochs=1,
            sampling=lambda *_: [1, 2], batch_size=4, engine=engine, dtype="float64", device="cpu", progress=False,
        )  # fmt: skip
        found.append(result.server.w)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)
