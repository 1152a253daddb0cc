"""What is made of replies, against literal loops; which lengths are let in, against the rule by hand."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from fedsmoo.core import Vectors
from fedsmoo.deploy.client import Answer
from fedsmoo.deploy.combine import cap_weights, combine
from fedsmoo.deploy.judge import Proportion, Scale

ROWS = torch.tensor([[1.0, -2.0, 0.5], [3.0, 5.0, 0.25], [2.0, 100.0, 0.0], [1e30, 1.0, -1e30], [4.0, 0.0, 1.0]])


def ups(rows: torch.Tensor) -> list[Vectors]:
    return [Vectors(w=row, d=2 * row) for row in rows]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_median_of_every_coordinate(n):
    out = combine("median", ups(ROWS[:n]), Vectors(), [1 / n] * n, 0.2)
    want = [statistics.median(column) for column in ROWS[:n].T.tolist()]
    assert out.w.tolist() == pytest.approx(want)
    assert out.d.tolist() == pytest.approx([2 * x for x in want])


@pytest.mark.parametrize(
    ("n", "trim", "out_of"), [(1, 0.2, 0), (2, 0.4, 0), (3, 0.2, 1), (5, 0.2, 1), (5, 0.4, 2), (5, 0.0, 0)]
)
def test_the_trimmed_mean(n, trim, out_of):
    rows = ROWS[:n].double()
    found = combine("trimmed-mean", ups(rows), Vectors(), [1 / n] * n, trim).w
    want = [statistics.fmean(sorted(column)[out_of : n - out_of]) for column in rows.T.tolist()]
    assert found.tolist() == pytest.approx(want)


def test_the_bounded_mean_is_a_mean_of_changes_cut_to_the_median_length():
    start = torch.tensor([1.0, 1.0])
    moves = torch.tensor([[3.0, 4.0], [0.0, 1.0], [-30.0, 40.0]])  # lengths 5, 1, 50
    weights = [0.5, 0.25, 0.25]
    found = combine("bounded-mean", [Vectors(w=start + m) for m in moves], Vectors(w=start), weights, 0.2).w
    want = start + 0.5 * moves[0] + 0.25 * moves[1] + 0.25 * moves[2] * 0.1
    assert found.tolist() == pytest.approx(want.tolist())


def test_long_vectors_are_combined_in_parts(monkeypatch):
    rows = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    whole = combine("median", ups(rows), Vectors(), [0.2] * 5, 0.2).w
    monkeypatch.setattr("fedsmoo.deploy.combine.COLUMNS", 64)
    assert torch.equal(combine("median", ups(rows), Vectors(), [0.2] * 5, 0.2).w, whole)
    assert torch.equal(whole, rows.median(0).values)


@pytest.mark.parametrize(
    ("weights", "most", "want"),
    [
        ([0.2, 0.3, 0.5], 0.5, [0.2, 0.3, 0.5]),
        ([0.9, 0.1], 0.5, [0.9, 0.1]),
        ([1.0], 0.5, [1.0]),
        ([0.9, 0.06, 0.04], 0.5, [0.5, 0.3, 0.2]),
        ([0.98, 0.01, 0.01], 0.1, [1 / 3, 1 / 3, 1 / 3]),
        ([0.6, 0.38, 0.01, 0.01], 0.4, [0.4, 0.4, 0.1, 0.1]),
    ],
)
def test_no_client_counts_for_more_than_its_share(weights, most, want):
    found = cap_weights(weights, most)
    assert found == pytest.approx(want)
    assert sum(found) == pytest.approx(1)


SCALE = Scale(model=5.0, lr=0.1, steps=2.0, samples=300, down=("w",), plain=("k",))


def sizes(*lengths: float, name: str = "w") -> dict[int, dict[str, float]]:
    return {i: {name: length} for i, length in enumerate(lengths)}


@pytest.mark.parametrize(
    ("lengths", "name", "out"),
    [
        ([1e30], "w", [0]),  # one reply, in the first round
        ([501.0], "w", [0]),  # 100 times the model's length is the most
        ([499.0], "w", []),
        ([1.0, 1e30], "w", [1]),
        ([1e30, 1e30, 1e30], "w", [0, 1, 2]),  # however many say so
        ([1.0, 1.0, 150.0], "w", [2]),  # 100 times the median
        ([1e-9, 1e-9, 0.04], "w", []),  # a hundredth of the model's length is never too much
        ([1e-9, 1e-9, 0.06], "w", [2]),
        ([2501.0], "dc", [0]),  # a change over two steps of 0.1: five times as long
        ([2499.0], "dc", []),
        ([100.0, 100.0, 20_000.0], "dc", [2]),
        ([9e9, 9e9, 9e9], "dc", []),  # nobody but the clients knows how long it should be
        ([0.0, 0.0, 1e30], "dc", [2]),  # no measure: the server's own counts
        ([0.0, 0.0, 2499.0], "dc", []),
        ([0.0, 0.0, 0.0], "dc", []),
        ([0.0, 0.0, 150_001.0], "k", [2]),
        ([149_999.0], "k", []),
        ([150_001.0], "k", [0]),
        ([math.inf, 1.0], "w", [0]),
    ],
)
def test_lengths_from_the_first_round_on(lengths, name, out):
    found = Proportion(100.0).outliers(sizes(*lengths, name=name), SCALE)
    assert sorted(found) == out
    assert all(r.reason == "out of proportion" for r in found.values())


def test_few_replies_are_measured_by_those_before():
    learned = Proportion(100.0)
    for _ in range(2):
        learned = learned.learn(sizes(0.5, 0.7))
    assert sorted(learned.outliers(sizes(59.0, 61.0), SCALE)) == [1]  # the median of four is 0.6
    assert sorted(Proportion(100.0).learn(sizes(0.2, 0.4, 0.3)).outliers(sizes(31.0, 29.0), SCALE)) == [0]
    for _ in range(30):  # half of all say a hundredth of the usual: the others stay in
        learned = learned.learn(sizes(0.5, 0.005))
    assert not learned.outliers(sizes(0.5, 0.005), SCALE)
    assert len(learned.recent["w"]) == 15


def test_declared_and_no_bounds():
    declared = Scale(5.0, 0.1, 2.0, 300, ("w",), most=2.0)
    assert sorted(Proportion(100.0).outliers(sizes(1.9, 2.1), declared)) == [1]
    assert sorted(Proportion(0.0).outliers(sizes(1.9, 2.1), declared)) == [1]
    assert not Proportion(0.0).outliers(sizes(1e30), SCALE)


def test_of_a_model_the_change_is_measured():
    down = Vectors(w=torch.tensor([3.0, 4.0]))
    up = Vectors(w=torch.tensor([3.0, 5.0]), dc=torch.tensor([0.0, 2.0]))
    answers = {7: Answer(up, 0.0, 0.0, 1, 1, 1)}
    assert Proportion(1.0).sizes(answers, down, "exact") == {7: {"w": 1.0, "dc": 2.0}}
    assert Proportion(1.0).sizes(answers, down, "int8")[7]["w"] == pytest.approx(math.sqrt(34))  # a change already
