"""Streams, cohorts and plans: the same name gives the same numbers, whoever else is there."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from patience import PATIENCE
from torch import Tensor

from fedsmoo.algorithms import FedAvg
from fedsmoo.core import FedsmooError, stream
from fedsmoo.core.random.streams import generator_apart, torch_stream
from fedsmoo.data.batches.augment import draws
from fedsmoo.data.batches.cohort import cohort
from fedsmoo.data.batches.plan import client_batches, make_plan, merge

INDICES = [np.arange(10), np.arange(10, 13), np.array([20]), np.arange(30, 37)]


def test_a_stream_is_its_name() -> None:
    first = stream(1, "batches", 2, 3).integers(1 << 30, size=8)
    assert np.array_equal(first, stream(1, "batches", 2, 3).integers(1 << 30, size=8))
    for other in [(2, "batches", 2, 3), (1, "cohort", 2, 3), (1, "batches", 3, 2), (1, "batches", 2)]:
        assert not np.array_equal(first, stream(*other).integers(1 << 30, size=8))


def test_zeros_at_the_end_of_a_name_name_nothing() -> None:
    """As the docstring says: purposes of ours are therefore each used with one number of places."""
    assert stream(0, "x", 3).random() == stream(0, "x", 3, 0).random() != stream(0, "x", 0, 3).random()


def test_streams_do_not_touch_global_generators() -> None:
    before = np.random.get_state()[1].copy()
    stream(0, "x").random(100)
    assert torch_stream(0, "x").initial_seed() == torch_stream(0, "x").initial_seed()
    assert torch_stream(0, "x").initial_seed() != torch_stream(0, "y").initial_seed()
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("batch_size", [1, 3, 4, 50])
def test_every_epoch_covers_every_sample_once(batch_size: int) -> None:
    samples = np.array([5, 5, 8, 9, 11, 2, 3])  # a partition with replacement may repeat one
    batches = client_batches(0, 0, 0, samples, batch_size, epochs=3, steps=None)
    per_epoch = -(-len(samples) // batch_size)
    assert len(batches) == 3 * per_epoch
    for e in range(3):
        epoch = batches[e * per_epoch : (e + 1) * per_epoch]
        assert sorted(np.concatenate(epoch)) == sorted(samples)
        assert [len(b) for b in epoch[:-1]] == [batch_size] * (per_epoch - 1)
        assert len(epoch[-1]) == (len(samples) - 1) % batch_size + 1
    assert batch_size > 6 or not all(np.array_equal(a, b) for a, b in zip(batches, batches[per_epoch:], strict=False))


@pytest.mark.parametrize("steps", [1, 3, 4, 10])
def test_local_steps_are_exact_and_the_first_batches_of_the_epochs(steps: int) -> None:
    samples = np.arange(10)
    batches = client_batches(0, 0, 0, samples, 4, epochs=None, steps=steps)
    epochs = client_batches(0, 0, 0, samples, 4, epochs=4, steps=None)
    assert len(batches) == steps
    assert all(np.array_equal(a, b) for a, b in zip(batches, epochs, strict=False))


def test_a_client_s_batches_depend_on_nobody_else() -> None:
    alone = make_plan(7, 3, [1], INDICES, 4, epochs=2, draw=draws)
    for company in ([0, 1], [1, 2, 3], [0, 1, 2, 3]):
        c = company.index(1)
        plan = make_plan(7, 3, company, INDICES, 4, epochs=2, draw=draws)
        steps = int(plan.steps[c])
        assert steps == alone.steps[0]
        for k in range(steps):
            n = int(plan.count[k, c])
            assert np.array_equal(plan.index[k, c, :n], alone.index[k, 0, :n])


def test_augmentation_draws_depend_on_nobody_else_once_the_width_is_fixed() -> None:
    alone = make_plan(7, 3, [1], INDICES, 4, epochs=2, draw=draws, width=4)
    both = make_plan(7, 3, [0, 1], INDICES, 4, epochs=2, draw=draws, width=4)
    for name, d in alone.draws.items():
        assert np.array_equal(both.draws[name][:2, 1], d[:, 0])
        assert not both.draws[name][2:, 1].any()  # of steps that the client does not take
    assert make_plan(8, 3, [1], INDICES, 4, epochs=2, draw=draws, width=4).draws["dx"].shape == (2, 1, 4)


def test_plans_change_with_the_round_and_the_seed() -> None:
    base = make_plan(0, 0, [0], INDICES, 4, epochs=1).index
    assert not np.array_equal(base, make_plan(0, 1, [0], INDICES, 4, epochs=1).index)
    assert not np.array_equal(base, make_plan(1, 0, [0], INDICES, 4, epochs=1).index)


def test_a_plan_pads_unequal_clients_and_says_so() -> None:
    plan = make_plan(0, 0, [0, 1, 2], INDICES, 4, epochs=2)
    assert plan.index.shape == (6, 3, 4)
    assert plan.steps.tolist() == [6, 2, 2]
    assert plan.count[:, 0].tolist() == [4, 4, 2, 4, 4, 2]
    assert plan.count[:, 1].tolist() == [3, 3, 0, 0, 0, 0]
    assert plan.count[:, 2].tolist() == [1, 1, 0, 0, 0, 0]
    part = plan.select(slice(1, 3))
    assert part.index.shape == (2, 2, 4)
    assert part.count.tolist() == [[3, 1], [3, 1]]


def test_plans_of_several_runs_stand_side_by_side() -> None:
    a = make_plan(0, 0, [0], INDICES, 4, epochs=1, draw=draws)
    b = make_plan(1, 0, [1, 2], INDICES, 4, epochs=2, draw=draws)
    both = merge([a, b])
    assert both.index.shape == (3, 3, 4)
    assert both.steps.tolist() == [3, 2, 2]
    assert np.array_equal(both.select(slice(0, 1)).index, a.index)
    assert np.array_equal(both.index[:2, 1:, : b.index.shape[2]], b.index)
    assert np.array_equal(both.draws["dy"][:2, 1:, : b.index.shape[2]], b.draws["dy"])


def test_uniform_cohorts_have_n_different_clients_and_are_fair() -> None:
    counts = np.zeros(10, int)
    for t in range(2000):
        clients = cohort(0, t, 10, 3)
        assert len(set(clients)) == 3
        assert clients == sorted(clients)
        counts[clients] += 1
    # Each client is drawn with probability 0.3: 600 times, standard deviation sqrt(2000 * 0.21) = 20.5.
    assert np.abs(counts - 600).max() < 5 * 20.5
    assert cohort(0, 5, 10, 3) == cohort(0, 5, 10, 3)


def test_bernoulli_cohorts_have_binomial_sizes() -> None:
    sizes = np.array([len(cohort(0, t, 20, 5, "bernoulli")) for t in range(2000)])
    # Binomial(20, 1/4): mean 5, variance 3.75; the mean of 2000 has a standard deviation of 0.043.
    assert abs(sizes.mean() - 5) < 5 * 0.043
    assert abs(sizes.var() - 3.75) < 0.7
    assert sizes.min() < 2


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    for size in (0, 4):
        with pytest.raises(FedsmooError, match="choose a cohort from 1 to 3"):
            cohort(0, 0, 3, size)


@pytest.mark.parametrize("sampling", ["uniform", "bernoulli"])
def test_every_engine_gets_the_same_cohorts_and_batches(sampling: str) -> None:
    from engines.small import simulation

    seen = {}
    for kind in ("serial", "vmap", "hand", "chunk2", "recorded"):
        run = simulation(kind, "softmax", FedAvg(), sampling=sampling, rounds=3)
        works = []
        for _ in range(3):
            work = run.prepare()
            works.append((work.clients, work.plan.index.tolist(), work.plan.count.tolist()))
            run.advance()
        seen[kind] = works
    assert all(works == seen["serial"] for works in seen.values())


def test_augmentation_of_a_client_does_not_depend_on_others_or_their_sizes() -> None:
    samples = [np.arange(3), np.arange(40)]
    alone = make_plan(0, 2, [0], samples, batch_size=8, epochs=2, draw=draws)
    wide = make_plan(0, 2, [0, 1], samples, batch_size=8, epochs=2, draw=draws)
    assert alone.draws is not None
    assert wide.draws is not None
    assert alone.index.shape[2] == 3
    for name in ("flip", "dy", "dx"):
        np.testing.assert_array_equal(wide.draws[name][: len(alone.index), 0, :3], alone.draws[name][:, 0])


def test_the_global_generator_is_one_threads_at_a_time():
    """What another thread seeds meanwhile decides nothing here, and nothing is left of it."""
    inside, other_has_it, drawn = (threading.Event() for _ in range(3))

    def mine() -> Tensor:
        with generator_apart(1):
            inside.set()
            other_has_it.wait(0.5)  # which it must not: it waits for this thread
            return torch.rand(3)

    def others() -> Tensor:
        with generator_apart(2):
            other_has_it.set()
            drawn.wait(PATIENCE)
            return torch.rand(3)

    before = torch.get_rng_state()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(mine)
        assert inside.wait(PATIENCE)
        second = pool.submit(others)
        found = first.result(PATIENCE)
        drawn.set()
        assert torch.equal(second.result(PATIENCE), torch.rand(3, generator=torch.Generator().manual_seed(2)))
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), before)
