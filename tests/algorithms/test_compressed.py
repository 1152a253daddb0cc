"""Compressed messages: against numpy, closed forms, and what would travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import FedAvg, FedDyn, FedSMOO
from fedsmoo.algorithms.compressed import QSGD, Compressed, RandomK, Sign, TopK, bits_of
from fedsmoo.api import simulate
from fedsmoo.core import Round, Vectors
from fedsmoo.core.contract import findings
from fedsmoo.core.random.streams import stream
from fedsmoo.testing import undescribed

KINDS = [TopK(ratio=0.05), RandomK(ratio=0.05), QSGD(levels=4), QSGD(levels=4, feedback=True), Sign()]
IDS = [f"{type(k).__name__}-{k.feedback}" for k in KINDS]


def random(size: int, name: str = "v") -> torch.Tensor:
    return torch.from_numpy(stream(0, name, size).standard_normal(size))


def rnd(*keys: tuple[int, int]) -> Round:
    """Somewhere in a round: of one client, or of several."""
    key = torch.tensor(keys if len(keys) > 1 else keys[0], dtype=torch.int64)
    return Round(0, 0.1, 1, 1.0, key=key)


HERE = rnd((1, 2))


def test_top_k_is_numpys():
    v = random(1000)
    want = np.zeros(1000)
    largest = np.argsort(-np.abs(v.numpy()))[:50]
    want[largest] = v.numpy()[largest]
    assert np.array_equal(TopK(ratio=0.05).coded(v, "w", HERE).numpy(), want)


def test_random_places_are_as_many_as_asked_and_evenly_drawn():
    """A place is drawn with chance k / P: over 400 messages, 8 times the deviation is never reached."""
    code, hits = RandomK(ratio=0.05), torch.zeros(200, dtype=torch.float64)
    for i in range(400):
        sent = code.coded(torch.ones(200, dtype=torch.float64), "w", rnd((i, 7)))
        assert sent.sum() == 10
        hits += sent
    assert (hits - 20).abs().max() < 8 * np.sqrt(400 * 0.05 * 0.95)


def test_unbiased_codes_have_the_right_mean():
    """QSGD, and random-k without feedback: the mean of 4,000 messages is within five of its deviations."""
    v = random(600)
    for code in (QSGD(levels=2), RandomK(ratio=0.2, feedback=False)):
        sent = code.coded(v.expand(4000, -1), "w", rnd(*((i, 3) for i in range(4000))))  # one client's each
        assert ((sent.mean(0) - v).abs() <= 5 * sent.std(0) / 4000**0.5 + 1e-12).all()


def test_levels_of_qsgd_are_whole_multiples_of_the_bucket():
    v = random(1100)
    for start in range(0, 1100, 512):
        part = QSGD(levels=4).coded(v, "w", HERE)[start : start + 512]
        levels = 4 * part / v[start : start + 512].norm()
        assert torch.allclose(levels, levels.round(), atol=1e-9)
        assert levels.abs().max() <= 4


def test_signs_have_the_mean_magnitude():
    v = torch.tensor([1.0, -2.0, 0.0, 5.0])
    assert Sign().coded(v, "w", HERE).tolist() == [2, -2, 2, 2]


@pytest.mark.parametrize("code", KINDS, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_travels_is_what_is_counted_and_gives_the_same_vector(code: Compressed, dtype: torch.dtype):
    for size in (1, 7, 511, 513, 2000):
        v = random(size).to(dtype)
        message = code.message(v, "w", HERE)
        assert sum(part.nbytes for part in message.values()) == code.bytes_up("w", size, v.element_size())
        assert torch.equal(code.received(message, "w", v, HERE), code.coded(v, "w", HERE))


@pytest.mark.parametrize("code", KINDS, ids=IDS)
def test_clients_are_coded_one_by_one(code: Compressed):
    rows = torch.stack([random(700, "a"), 1e-3 * random(700, "b"), torch.zeros(700, dtype=torch.float64)])
    keys = [(1, 2), (3, 4), (5, 6)]
    alone = torch.stack([code.coded(v, "w", rnd(k)) for v, k in zip(rows, keys, strict=True)])
    assert torch.equal(code.coded(rows, "w", rnd(*keys)), alone)


@pytest.mark.parametrize("code", [k for k in KINDS if k.feedback], ids=lambda k: type(k).__name__)
def test_feedback_loses_nothing_and_stays_bounded(code: Compressed):
    """The sum of T messages of one change is T times it, but for what is still kept, which does not grow."""
    w, down = random(600), Vectors(w=torch.zeros(600, dtype=torch.float64))
    me, total, kept = code.first_contact(down), torch.zeros(600, dtype=torch.float64), []
    for i in range(300):
        me, up = code.finish(w, down, me, rnd((i, 9)))
        total += up.w
        kept.append(me.err_w.norm())
    assert torch.allclose(total + me.err_w, 300 * w, atol=1e-8)
    assert max(kept) < 0.2 * 300 * w.norm()
    assert isinstance(code, Sign) or max(kept[250:]) < 1.5 * max(kept[50:100])


@pytest.mark.parametrize("code", KINDS, ids=IDS)
def test_every_code_keeps_the_contract(code: Compressed):
    for inner in (FedAvg(), FedSMOO(), FedDyn()):
        algorithm = type(code)(inner, feedback=code.feedback)
        assert findings(algorithm) == []
        assert undescribed(algorithm) == ([], [])


def test_a_server_goes_on_with_the_mean_of_changes():
    code, w = TopK(FedDyn(beta=10.0), ratio=0.5), random(4)
    srv = code.init(w).replace(lam=random(4, "lam"))
    step = torch.tensor([0.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    after, want = (
        code.aggregate(srv, Vectors(w=step), HERE),
        FedDyn(beta=10.0).aggregate(srv, Vectors(w=w + step), HERE),
    )
    assert torch.equal(after.w, want.w)
    assert torch.equal(after.lam, want.lam)


def test_bits():
    assert [bits_of(s) for s in (1, 3, 4, 127)] == [2, 3, 4, 8]


@pytest.mark.parametrize("name", ["topk", "randomk", "qsgd", "sign"])
def test_runs_of_all_engines_agree_and_count_what_travels(name: str):
    settings = {"clients": 6, "cohort": 3, "rounds": 3, "local_steps": 2, "dtype": "float64", "compression": name}
    runs = [simulate("softmax", "digits", "fedsmoo", engine=e, **settings) for e in ("serial", "batched", "vmap")]
    size = runs[0].model.weight.numel() + runs[0].model.bias.numel() if hasattr(runs[0].model, "weight") else 650
    for other in runs[1:]:
        assert [r.test_loss for r in other.history] == pytest.approx([r.test_loss for r in runs[0].history], abs=1e-9)
    code = {"topk": TopK(), "randomk": RandomK(), "qsgd": QSGD(), "sign": Sign()}[name]
    assert runs[0].history[0].bytes_up == 3 * len(FedSMOO().up) * code.size(size, 8)
    assert runs[0].history[0].bytes_down == 3 * len(FedSMOO().down) * size * 8
