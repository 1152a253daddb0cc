"""Recurrent kernels with a client axis against the same recurrence in float64, which tests/engines holds to PyTorch."""

import pytest
import torch

from fedsmoo.operators.recurrence import backward as truth_backward
from fedsmoo.operators.recurrence import forward as truth

# steps, clients, samples, hidden units
SHAPES = {"one of each": (1, 1, 1, 1), "primes": (3, 2, 5, 37), "several blocks": (2, 1, 67, 40)}


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu", "lstm, all steps in one launch"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_forward_and_backward(kind, shape, draw, monkeypatch):
    from fedsmoo.kernels.recurrent import whole
    from fedsmoo.kernels.recurrent.steps import GATES, backward, forward

    launched, (kind, _, at_once) = [], kind.partition(", ")
    if at_once:
        run = whole.run
        monkeypatch.setattr(whole, "serves", lambda *_: True)
        monkeypatch.setattr(whole, "run", lambda kernel, *given: [launched.append(kernel), run(kernel, *given)])
    steps, clients, samples, hidden = shape
    wide = GATES[kind] * hidden
    gx = draw(clients, samples, steps, wide).permute(2, 0, 1, 3)  # rows are whole, and lie anywhere
    w, b = draw(clients, wide, hidden) / hidden**0.5, draw(clients, wide)
    h0, c0, dc = (draw(clients, samples, hidden) for _ in range(3))
    dh = draw(steps, clients, samples, hidden)
    found = forward(kind, gx, w, b, h0, c0, "ieee")
    want = truth(kind, *(v.double() for v in (gx, w, b, h0, c0)))
    for got, exact in zip(found, want, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=0, atol=1e-5)
    given = (dh, *found, w, h0, c0, dc)
    exact = truth_backward(kind, True, *(v.double() for v in (dh, *want, w, h0, c0, dc)))
    for got, v in zip(backward(kind, True, *given, "ieee"), exact, strict=True):
        torch.testing.assert_close(got.double(), v, rtol=0, atol=2e-5 * max(1.0, float(v.abs().max())))
    assert launched == ([whole.whole_forward_kernel, whole.whole_backward_kernel] if at_once else [])


def test_all_steps_are_one_launch_where_all_programs_run_at_once(device, monkeypatch):
    """Ten clients of 50 samples and 256 hidden units: eight programs of 32 units each, on 132 multiprocessors."""
    from fedsmoo.kernels.recurrent import whole

    if device == "cuda" and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("such a GPU has too little shared memory")
    kinds = [("lstm", torch.bfloat16, c, h) for c, h in ((10, 256), (16, 256), (17, 256), (10, 257), (33, 100))]
    kinds += [("gru", torch.bfloat16, 10, 256), ("lstm", torch.float32, 10, 256)]
    given = [(k, torch.empty(1, c, 50, 4, dtype=dtype, device=device), h) for k, dtype, c, h in kinds]
    assert not any(whole.serves(*g) for g in given)  # nobody has timed it yet
    monkeypatch.setattr(whole, "ON", True)
    assert [whole.serves(*g) for g in given] == [True, True, False, False, True, False, False]


@pytest.mark.parametrize("at_once", [False, True])
def test_samples_that_lie_far_apart_are_found_in_64_bits(at_once, offsets, draw, device, monkeypatch):
    """As of a whole data set in one batch, each with all of its time steps: 30,000 x 80 x 4 x 256 is 2.5 billion."""
    from fedsmoo.kernels.recurrent import whole
    from fedsmoo.kernels.recurrent.steps import backward, forward

    monkeypatch.setattr(whole, "serves", lambda *_: at_once)
    gx = draw(1, 5, 3, 32).permute(2, 0, 1, 3)
    dh, w, b = draw(1, 5, 3, 8).permute(2, 0, 1, 3), draw(1, 32, 8), draw(1, 32)
    h0, c0, dc = (draw(1, 5, 8) for _ in range(3))
    backward("lstm", True, dh, *forward("lstm", gx, w, b, h0, c0, "ieee"), w, h0, c0, dc, "ieee")
    if device == "cpu":  # interpreted
        assert [offsets(gx), offsets(dh)] == [{"int64"}] * 2
