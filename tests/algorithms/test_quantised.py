"""Rounded vectors on the wire: against numpy, closed forms, and the exact run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import FedDyn, FedSMOO
from fedsmoo.algorithms.quantised import BLOCK, Quantised, int8_codes, int8_values, rounded, wire_bytes
from fedsmoo.api import simulate
from fedsmoo.core import Round, Vectors
from fedsmoo.core.contract import findings
from fedsmoo.core.random.streams import stream
from fedsmoo.testing import undescribed, untraceable

from .variants import INSIDE

SIZES = [1, 255, 256, 257, 1000]


def random(size: int, spread: float = 6.0) -> torch.Tensor:
    """Numbers over many orders of magnitude."""
    rng = stream(0, "wired", size)
    return torch.from_numpy((rng.standard_normal(size) * 10 ** rng.uniform(-spread, 0, size)).astype(np.float32))


@pytest.mark.parametrize("size", SIZES)
def test_int8_is_within_half_a_step_of_every_block(size):
    v = random(size)
    error = (rounded(v, "int8") - v).abs().numpy()
    for start in range(0, size, BLOCK):
        block = v[start : start + BLOCK].abs().max().item()
        # half a step of 1/127 of the block's largest number, whose scale is rounded to 8 bits (2**-9 of it)
        assert error[start : start + BLOCK].max() <= block / 127 * (0.5 + 127 * 2**-9)


@pytest.mark.parametrize("size", SIZES)
def test_fp16_is_numpys(size):
    v = random(size)
    assert np.array_equal(rounded(v, "fp16").numpy(), v.numpy().astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_rounding_twice_is_rounding_once(kind):
    v = random(3000)
    once = rounded(v, kind)
    assert torch.equal(rounded(once, kind), once)
    codes, scale = int8_codes(once)
    assert torch.equal(int8_values(codes.to(torch.int8).float(), scale), rounded(once, "int8"))


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_rows_are_rounded_one_by_one(kind):
    rows = torch.stack([random(700), 1e-3 * random(700).flip(0), torch.zeros(700)])
    assert torch.equal(rounded(rows, kind), torch.stack([rounded(r, kind) for r in rows]))


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_nan_stays_and_extremes_stay_finite(kind):
    assert rounded(torch.tensor([1.0, torch.nan]), kind).isnan()[1]
    big = rounded(torch.tensor([1e30, -1e30, 0.0]), kind)
    assert big.isfinite().all()
    assert big[2] == 0
    assert torch.equal(rounded(torch.full((5,), 1e-33), "int8"), torch.zeros(5))


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_error_feedback_loses_nothing(kind):
    """The sum of T messages of one constant vector is T times it, but for the one error that is still kept."""
    algorithm, v, rnd = Quantised(FedDyn(), kind), random(500), Round(0, 0.1, 1, 1.0)
    down = Vectors(w=torch.zeros(500))
    me, total = algorithm.first_contact(down), torch.zeros(500, dtype=torch.float64)
    for _ in range(50):
        me, up = algorithm.finish(v, down, me, rnd)
        total += up.w
    assert torch.allclose(total + me.err_w, 50 * v.double(), atol=1e-6)
    assert (me.err_w.abs() <= v.abs().max() / 127).all()


def test_a_round_by_hand():
    """FedDyn on three clients, written out: what is sent is rounded, the server moves by the mean of what it gets."""
    beta, w, lam = 10.0, random(300), 1e-2 * random(300).flip(0)
    algorithm, rnd = Quantised(FedDyn(beta=beta), "int8"), Round(0, 0.1, 1, 0.5)
    srv = algorithm.init(w).replace(lam=lam, err_w=1e-3 * random(300))
    sent = rounded(w + srv.err_w, "int8")
    assert torch.equal(algorithm.sent(srv).w, sent)
    ends = [sent + 1e-2 * random(300).roll(k) for k in range(3)]
    ups = []
    for end in ends:
        me, up = algorithm.finish(end, algorithm.sent(srv), algorithm.first_contact(Vectors(w=sent)), rnd)
        assert torch.equal(up.w, rounded(end - sent, "int8"))
        assert torch.equal(me.err_w, end - sent - up.w)
        assert torch.equal(me.lam, -(end - sent) / beta)
        ups.append(up.w)
    step = (ups[0] + ups[1] + ups[2]) / 3
    after = algorithm.aggregate(srv, Vectors(w=step), rnd)
    new_lam = lam - 0.5 * step / beta
    torch.testing.assert_close(after.lam, new_lam, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(after.w, w + step - beta * new_lam, rtol=1e-5, atol=1e-7)
    assert torch.equal(after.err_w, w + srv.err_w - sent)


@pytest.mark.parametrize("name", [name for name, method in INSIDE.items() if not method.stays])
def test_every_kind_of_method_keeps_its_contract(name):
    for kind in ("fp16", "int8"):
        algorithm = Quantised(INSIDE[name], kind)
        assert findings(algorithm) == []
        assert undescribed(algorithm) == ([], [])


def test_a_wired_step_compiles():
    assert untraceable(Quantised(FedSMOO(), "int8")) == []


def run(wire: str, algorithm: str = "fedsmoo", **more):
    return simulate(
        "mlp", "digits", algorithm, clients=10, cohort=4, rounds=12, local_epochs=2, batch_size=32, seed=1,
        partition="dirichlet-0.5", wire=wire, eval_every=4, **more,
    )  # fmt: skip


def test_the_ledger_counts_what_travels_and_accuracy_holds():
    exact, half, byte = (run(wire, engine="batched") for wire in ("exact", "fp16", "int8"))
    size = exact.simulation.setup.task.model.layout.size
    per_vector = {"exact": 4 * size, "fp16": 2 * size, "int8": size + 2 * -(-size // 256)}
    for result, kind in ((exact, "exact"), (half, "fp16"), (byte, "int8")):
        assert all(r.bytes_up == r.bytes_down == 4 * 2 * per_vector[kind] for r in result.history)
    assert wire_bytes(257, "int8") == 257 + 4
    assert exact.accuracy > 0.7  # 12 rounds learn something that rounding could spoil
    assert abs(half.accuracy - exact.accuracy) < 0.01
    assert abs(byte.accuracy - exact.accuracy) < 0.03
