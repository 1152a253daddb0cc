"""The robust rules by themselves: closed forms, and what a wild reply can do to them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedsmoo import simulate
from fedsmoo.algorithms import RFA, FedAvg, FedExP, FedSMOO, Krum, Median, MultiKrum, NormBounded, Relaxed, TrimmedMean
from fedsmoo.algorithms.compressed import TopK
from fedsmoo.core import Algorithm, FedsmooError, Round, Schedule, Vectors, norm, server
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.engines.client_state import memory
from fedsmoo.engines.contract import Contribution, Sums
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config

N, P = 7, 40
ROWS = torch.randn((N, P), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = torch.arange(1.0, N + 1, dtype=torch.float64)[:, None] / sum(range(1, N + 1))
SRV = Vectors(w=torch.zeros(P, dtype=torch.float64))
RND = Round(1, 0.1, 2.0, 0.5, n=N)
RULES = [Median(), TrimmedMean(), Krum(), MultiKrum(), RFA(steps=50), NormBounded(bound=10.0)]


def combined(rule: Algorithm, rows: torch.Tensor, weights: torch.Tensor = WEIGHTS) -> torch.Tensor:
    return rule.combine(SRV, Vectors(w=rows), weights, RND).w


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(n: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rows = ROWS[:n].numpy()
    np.testing.assert_allclose(combined(Median(), ROWS[:n]), np.median(rows, 0), rtol=0, atol=1e-15)
    trimmed = stats.trim_mean(rows, 0.2, axis=0)
    np.testing.assert_allclose(combined(TrimmedMean(trim=0.2), ROWS[:n]), trimmed, rtol=0, atol=1e-15)


def test_the_geometric_median_is_where_pulls_cancel() -> None:
    """The gradient of the sum of p_i ||z - v_i|| is the weighted sum of unit vectors; on a line it is the median."""
    z = combined(RFA(steps=300, nu=1e-12), ROWS)
    pulls = WEIGHTS * (ROWS - z) / norm(ROWS - z)
    assert float(pulls.sum(0).norm()) < 1e-10
    line = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64) * ROWS[:1]
    z = combined(RFA(steps=200), line, torch.full((3, 1), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(z, ROWS[0], rtol=0, atol=1e-5)


def test_krum_takes_a_reply_and_multi_krum_leaves_the_strangest_out() -> None:
    rows = ROWS.clone()
    rows[3] += 100.0
    assert any(torch.equal(combined(Krum(), rows), rows[i]) for i in (0, 1, 2, 4, 5, 6))
    rest = torch.cat([rows[:3], rows[4:]])
    torch.testing.assert_close(combined(MultiKrum(attackers=0.2), rows), rest.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_one_wild_reply_moves_a_rule_a_little_and_the_mean_far(rule: Algorithm) -> None:
    wild = ROWS.clone()
    wild[2] = 1e6
    honest = torch.cat([ROWS[:2], ROWS[3:]])
    assert float((combined(FedAvg(), wild) - honest.mean(0)).norm()) > 1e5
    assert float((combined(rule, wild) - honest.mean(0)).norm()) < float(norm(ROWS).max())


def test_norms_are_bounded_around_what_was_sent() -> None:
    base = torch.full((P,), 5.0, dtype=torch.float64)
    rows = base + torch.diag(torch.arange(1.0, P + 1, dtype=torch.float64))[:2]  # updates of norm 1 and 2
    made = NormBounded(bound=1.5).combine(Vectors(w=base), Vectors(w=rows), torch.full((2, 1), 0.5).double(), RND).w
    expected = base.clone()
    expected[0], expected[1] = 5.0 + 0.5 * 1.0, 5.0 + 0.5 * 1.5
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-15)


def test_every_vector_of_a_reply_is_a_row_and_single_numbers_are_not() -> None:
    assert Median(FedSMOO()).rows == ("w", "s_tilde")
    assert Median(FedExP()).rows == ("w",)
    assert Krum(FedSMOO()).label == "FedSMOO+Krum"
    rows = Vectors(w=ROWS, s_tilde=2 * ROWS)
    best = Krum(FedSMOO()).combine(SRV, rows, WEIGHTS, RND)
    assert torch.equal(best.s_tilde, 2 * best.w)  # of the same client


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trim=0.3)], ids=["median", "trimmed"])
@pytest.mark.parametrize(("width", "dtype"), [(1, torch.float32), (13, torch.float32), (40, torch.float64)])
def test_rules_of_coordinates_take_some_columns_at_a_time(
    rule: Median | TrimmedMean, width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same bits as all at once, whatever the width of a block, with a vector of another size beside the model."""
    g = torch.Generator().manual_seed(0)
    rows = Vectors(w=torch.randn(7, 101, generator=g, dtype=dtype), s=torch.randn(7, 5, generator=g, dtype=dtype))
    srv, widths, kind = Vectors(w=rows.w[0]), list[int](), type(rule)

    @dataclass(frozen=True)
    class Sized(kind):  # type: ignore[valid-type, misc]
        rows = ("w", "s")
        sizes = {"s": 5}

        def combine(self, srv, rows, weights, rnd):  # type: ignore[no-untyped-def]
            (length,) = {v.shape[-1] for _, v in rows.items()}
            assert "w" not in rows.names() or srv.w.shape == (length,)
            widths.append(length)
            return super().combine(srv, rows, weights, rnd)

    whole = rule.combine(srv, rows, torch.full((7, 1), 1 / 7, dtype=dtype), RND)
    monkeypatch.setattr(server, "AT_ONCE", 7 * width)
    replies = server.Replies(rows, range(7), [1] * 7, [1] * 7, [1 / 7] * 7)
    found = server.combined(Sized(**rule.options()), srv, replies, RND, 101)
    assert all(torch.equal(v, getattr(found, n)) for n, v in whole.items())
    assert max(widths) == width
    assert len(widths) == -(-101 // width) + -(-5 // width)


def test_only_rules_of_coordinates_say_so() -> None:
    assert [rule.columnwise for rule in RULES] == [True, True, False, False, False, False]
    assert Relaxed(Median(), 0.1).columnwise
    assert not TopK(Median()).columnwise  # which adds what was sent


def test_many_replies_wait_in_the_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they take more than a quarter of a GPU, of a rule of coordinates; what does not fit there is refused."""
    run = assemble(Config(algorithm="median", model="softmax", clients=5, cohort=4, rounds=1, device="cpu"))
    task = run.setup.task
    gpu: Any = SimpleNamespace(device=torch.device("cuda"), model=task.model, dtype=task.dtype)
    setup = replace(run.setup, task=gpu)
    need = 4 * memory.reply_bytes(setup)
    sizes = {"cuda": 4 * need - 4, "cpu": 2 * need}
    monkeypatch.setattr(memory, "total_bytes", lambda device: sizes[device.type])
    assert [memory.place_of_rows(setup, n).type for n in (3, 4)] == ["cuda", "cpu"]
    memory.refuse_too_many_rows(setup, 4)
    sizes["cpu"] -= 2
    with pytest.raises(FedsmooError, match=r"every reply: those of 4 clients are .* but half of the memory of cpu"):
        memory.refuse_too_many_rows(setup, 4)
    with pytest.raises(FedsmooError, match="a quarter of the memory of cuda"):
        memory.refuse_too_many_rows(replace(setup, algorithm=Krum()), 4)
    sums = Sums(2, place=torch.device("meta"))
    sums.add(Contribution(Vectors(), torch.zeros(()), torch.zeros(()), rows=Vectors(w=torch.ones(1, 3))))
    assert sums.rows is not None
    assert (sums.rows.w.device.type, sums.rows.w.shape) == ("meta", (2, 3))


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (
            TrimmedMean(trim=0.2),
            "FedAvg+TrimmedMean: trim is 0.2, but of 4 replies that is none: raise it, or the cohort",
        ),
        (MultiKrum(attackers=0.1), "FedAvg+MultiKrum: attackers is 0.1, but of 4 replies that is none"),
        (TrimmedMean(trim=0.25), None),
        (TrimmedMean(trim=0.0), None),
        (Krum(attackers=Schedule(0.0, steps={1: 0.3})), None),
        (Median(), None),
    ],
    ids=str,
)
def test_a_share_that_is_none_of_the_replies_is_said(method: Algorithm, told: str | None) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        simulate("softmax", "digits", method, clients=6, cohort=4, rounds=1, local_steps=1)
    found = [str(w.message) for w in said if issubclass(w.category, FedsmooWarning) and "replies" in str(w.message)]
    assert len(found) == (told is not None)
    assert all(line.startswith(told) for line in found)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_weights_that_a_server_does_not_look_at_are_said(rule: Algorithm) -> None:
    alike = torch.equal(combined(rule, ROWS), combined(rule, ROWS, torch.full_like(WEIGHTS, 1 / N)))
    config = Config(model="softmax", clients=6, cohort=6, rounds=1, local_steps=1, weighted=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assemble(config, algorithm=Relaxed(rule, 0.1))
        assemble(config.replace(weighted=False), algorithm=rule)
        assemble(config, algorithm=FedAvg())
    found = [str(w.message) for w in said if "weighted" in str(w.message)]
    assert found == [f"{rule.label} counts all clients alike: weighted changes nothing of its model"] * alike
