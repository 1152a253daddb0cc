"""What is done while the device is busy: once a round, however the clients are cut; and without it all goes on."""

from __future__ import annotations

import pytest
import torch

from fedsmoo.algorithms import SCAFFOLD

from .small import simulation

EQUAL = {"cohort": 4, "sampling": "uniform", "local_epochs": None, "local_steps": 2}


@pytest.mark.parametrize("kind", ["hand", "vmap", "chunk1", "chunk3", "chunk9", "recorded"])
def test_it_is_called_once_in_a_round(kind):
    run = simulation(kind, "mlp", SCAFFOLD(), **EQUAL)
    work, calls = run.prepare(), []
    busy = run.engine.run_round(work, lambda: calls.append(len(calls)))
    assert calls == [0]
    alone = simulation(kind, "mlp", SCAFFOLD(), **EQUAL)
    plain = alone.engine.run_round(alone.prepare())
    assert torch.equal(busy.mean.w, plain.mean.w)
    assert (busy.loss, busy.drift) == (plain.loss, plain.drift)


def test_rounds_train_the_clients_that_the_seed_names():
    """A cohort hangs on the seed and the round, each in its place."""
    from fedsmoo.data.batches.cohort import cohort

    run = simulation("hand", "mlp", SCAFFOLD(), cohort=2, sampling="uniform", seed=5, rounds=3)
    found = [run.advance().cohort for _ in range(3)]
    assert found == [cohort(5, number, 6, 2) for number in range(3)]
    assert found != [cohort(number, 5, 6, 2) for number in range(3)]
