"""What is drawn at random is spread as its law says: classes of clients, samples of classes, the order of decks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedsmoo.data.division.partition import IID, Dirichlet, Pathological

CLASSES, EACH = 10, 400
LABELS = np.repeat(np.arange(CLASSES), EACH)  # sorted: the samples of class k are k * EACH .. (k + 1) * EACH


def held(split: list[np.ndarray]) -> np.ndarray:
    """Which classes each client has: ``[m, K]``."""
    return np.stack([np.bincount(LABELS[i], minlength=CLASSES) > 0 for i in split])


@pytest.mark.parametrize("replacement", [True, False])
def test_pathological_clients_have_classes_of_their_own(replacement):
    """Every one of the 120 triples is as likely: 400 clients meet 120 (1 - (119/120)^400) = 115.8 of them on average.

    The number of clients with a given class is then Binomial(400, 0.3): 120, with a standard deviation of 9.2. Blocks
    of three clients share a shuffle without replacement, which spreads the classes more evenly, never less.
    """
    owns = held(Pathological(3, replacement).split(LABELS, CLASSES, 400, 0))
    assert set(owns.sum(1)) <= {1, 2, 3}
    full = [tuple(np.flatnonzero(row)) for row in owns if row.sum() == 3]
    assert len(full) > 300
    assert set(full) <= set(combinations(range(10), 3))
    expected = 120 * (1 - (119 / 120) ** len(full))
    assert abs(len(set(full)) - expected) < 5 * np.sqrt(expected * (1 - expected / 120))
    assert abs(owns.sum(0) - 120).max() < 4 * 9.2


@pytest.mark.parametrize("rule", [IID(True), Dirichlet(100.0), Pathological(3), Dirichlet(0.1)])
def test_every_sample_of_a_class_is_as_likely_as_any_other(rule):
    """Drawn with replacement from N, n samples hit N (1 - (1 - 1/N)^n) different ones, a tenth in each tenth."""
    drawn = np.concatenate(rule.split(LABELS, CLASSES, 40, 3))
    totals = np.bincount(LABELS[drawn], minlength=CLASSES)
    assert len(drawn) == len(LABELS)
    for k, n in enumerate(totals):
        mine = drawn[LABELS[drawn] == k] - k * EACH
        expected = EACH * (1 - (1 - 1 / EACH) ** n)
        assert abs(len(set(mine)) - expected) < 5 * np.sqrt(expected * (1 - expected / EACH)) + 1
        tenths = np.bincount(mine * 10 // EACH, minlength=10)
        assert abs(tenths - n / 10).max() < 5 * np.sqrt(n * 0.09) + 1


@pytest.mark.parametrize(
    "rule",
    [Dirichlet(0.3, refill=True), Pathological(3, refill=True), Dirichlet(0.3, False), Pathological(3, False), IID()],
)
def test_decks_are_shuffled(rule):
    """Who holds a sample says nothing about its place in the class.

    The correlation of N pairs that have nothing to do with each other has a standard deviation of 1 / sqrt(N - 1). A
    deck dealt as it lies has one near 1: a client's samples are neighbours.
    """
    clients = 20
    split = rule.split(LABELS, CLASSES, clients, 5)
    owner = np.repeat(np.arange(clients), [len(i) for i in split])
    samples = np.concatenate(split)
    for k in range(CLASSES):
        mine = LABELS[samples] == k
        if len(set(owner[mine])) > 2:
            r = np.corrcoef(owner[mine], samples[mine])[0, 1]
            assert abs(r) < 4.5 / np.sqrt(mine.sum() - 1), (k, r)


def test_what_a_refilled_deck_gives_twice_is_a_random_part_of_it():
    """The last deck of a class is dealt in part: each half of the class holds half of that, give or take."""
    used = np.bincount(np.concatenate(Dirichlet(0.3, refill=True).split(LABELS, CLASSES, 40, 7)), minlength=len(LABELS))
    checked = 0
    for mine in used.reshape(CLASSES, EACH):
        more = mine == mine.max()
        if 50 <= more.sum() <= EACH - 50:
            n = more.sum()
            deviation = np.sqrt(n / 4 * (EACH - n) / (EACH - 1))  # hypergeometric: n of EACH, half of them marked
            assert abs(more[: EACH // 2].sum() - n / 2) < 4.5 * deviation
            checked += 1
    assert checked >= 5


def test_two_clients_do_not_share_their_draws():
    """Two independent draws of n out of N have n^2 / N pairs in common on average (Poisson), not n."""
    a, b = Pathological(10).split(LABELS, CLASSES, 2, 1)
    pairs = sum(np.bincount(a, minlength=len(LABELS)) * np.bincount(b, minlength=len(LABELS)))
    assert abs(pairs - len(a) * len(b) / len(LABELS)) < 5 * np.sqrt(len(a) * len(b) / len(LABELS))
