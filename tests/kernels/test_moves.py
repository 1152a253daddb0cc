"""Ways to move numbers, as ``python -m benchmarks.kernels.moves`` times them: each computes what today's does."""

import pytest
import torch
from torch import nn


def net():
    return nn.Sequential(
        nn.Conv2d(3, 9, 3), nn.Conv2d(9, 8, 5, 2), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 13 * 13, 3)
    )


def jobs(kind, monkeypatch):
    from benchmarks.kernels.parts import jobs as moves

    if kind in ("cast", "place"):
        monkeypatch.setattr(moves, "MODULES", {"net": (net, None)})
        return [job for job in moves.moves("net", "cpu", 2, 3) if job.what == kind]
    if kind == "gather":
        return [moves.gather("cpu", 2, 3, samples=7)]
    if kind == "embedding":
        return [moves.embeddings("cpu", 2, places, 37, 5, "few", often) for places, often in ((60, False), (600, True))]
    return list(moves.recurrences("cpu", 2, 3, 4, 20))


@pytest.mark.parametrize("kind", ["cast", "place", "gather", "embedding", "recurrence"])
def test_every_way_computes_what_todays_does(kind, device, monkeypatch):
    from benchmarks.kernels.moves import error, poisoned

    if device != "cpu":
        pytest.skip("the benchmark compares its ways on a GPU by itself")
    for job in jobs(kind, monkeypatch):
        inputs = job.inputs()
        wanted = job.ways["today"](*inputs)
        assert len(job.ways) > 1 or "into bf16" in job.name
        for way in job.ways.values():
            with poisoned():
                found = way(*inputs)
            assert error(found, wanted) <= min(job.near, 1e-5)


def test_what_a_job_moves_at_least(device, monkeypatch):
    """By hand: 9 * 27 + 8 * 225 + 3 * 1352 weights and 3 + 9 + 8 biases, of 16 numbers of a norm none in bf16."""
    (job,) = jobs("cast", monkeypatch)
    assert job.bytes == 2 * 6 * (9 * 27 + 8 * 225 + 3 * 1352 + 20)
    (job,) = jobs("gather", monkeypatch)
    assert job.bytes == 2 * 4 * 2 * 3 * 3 * 32 * 32


def test_what_a_way_leaves_out_is_no_number(device):
    from benchmarks.kernels.moves import poisoned

    with poisoned():
        assert torch.ones(2).new_empty(1000, device=device).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_result_that_is_no_number_is_far(device):
    from benchmarks.kernels.moves import error

    one, none = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert error((one, 2 * one), (one, 4 * one)) == 0.5
    assert not error(none, one) <= 1.0
