"""The pictures of CIFAR's splits: what docs/results.md says of them, and that they need no images."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.figures import splits
from fedsmoo.data.division.partition import Dirichlet, Pathological

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize(("name", "value"), [("dirichlet", 0.1), ("pathological", 10)])
def test_how_many_of_each_class_follows_from_the_labels_in_any_order(name: str, value: float, refill: bool) -> None:
    """Counted client by client, of labels in the order of classes and shuffled; refilled decks deal as many."""
    kind = {"dirichlet": Dirichlet, "pathological": Pathological}[name]
    shuffled = np.random.default_rng(7).permutation(np.repeat(np.arange(100), 500))
    indices = kind(value, refill=refill).split(shuffled, 100, 100, 0)
    literal = [[int((shuffled[mine] == k).sum()) for k in range(100)] for mine in indices]
    np.testing.assert_array_equal(splits.held("cifar100", name, value), literal)


def test_the_page_says_what_the_pictures_show() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().partition("## Who holds what")[2].split())
    y = splits.labels("cifar100")
    hard = [len({int(y[i]) for i in mine}) for mine in splits.split("cifar100", "dirichlet", 0.1)]
    assert f"{min(hard)} to {max(hard)} at 0.1." in text
    totals = np.bincount(splits.labels("cifar10")[np.concatenate(splits.split("cifar10", "dirichlet", 0.1))])
    assert f"on CIFAR-10 from {totals.min():,} to {totals.max():,}" in text
    fields = {c: (splits.held("cifar100", "pathological", c) > 0).mean() for c in (30, 20, 10)}
    assert fields == {30: 0.3, 20: 0.2, 10: 0.1}
    white = (splits.held("cifar100", "dirichlet", 0.1) == 0).mean()
    assert white == pytest.approx(2 / 3, abs=0.01)
    assert (splits.held("cifar100", "dirichlet", 0.6) == 0).mean() == pytest.approx(0.26, abs=0.01)


def test_every_split_that_is_drawn_is_on_the_page() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    drawn = {f"split_cifar100_{n}-{v:g}.png" for n, values in splits.MAPS.items() for v in values}
    drawn |= {f"totals_{name}.png" for name in splits.CLASSES}
    assert {*re.findall(r"figures/((?:split|totals)_\S+\.png)", text)} == drawn
    assert all((ROOT / "docs" / "figures" / name).is_file() for name in drawn), "run make figures"
