"""Metrics, batch by batch, against scikit-learn on all samples at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.targets import NO_LABEL
from fedsmoo.metrics import tally
from fedsmoo.metrics.functions import log_odds
from fedsmoo.metrics.metric import make_metrics
from fedsmoo.metrics.tally import Tallying

G = torch.Generator().manual_seed(0)
N, K = 57, 6
CLASSES = torch.randint(K, (N,), generator=G)
LOGITS = torch.randn(N, K, generator=G) + F.one_hot(CLASSES, K)
PLACES = torch.where(torch.rand(N, 4, generator=G) < 0.6, torch.randint(K, (N, 4), generator=G), NO_LABEL)
PLACED = torch.randn(N, 4, K, generator=G) + F.one_hot(PLACES.clamp(min=0), K)
NUMBERS = torch.randn(N, 3, generator=G, dtype=torch.float64) + 5
GUESSES = NUMBERS + 0.3 * torch.randn(N, 3, generator=G, dtype=torch.float64)
LABELS = (torch.rand(N, K, generator=G) < 0.3).float()
SAID = torch.randn(N, K, generator=G) + 2 * LABELS - 1
ROUGH = (2 * SAID).round() / 2  # with many ties


def scores(names: Any, out: Tensor, y: Tensor, target: str, size: int) -> dict[str, Any]:
    """Return metrics of outputs that come in batches."""
    adding = Tallying(
        make_metrics(names, target), lambda o, t: o.reshape(len(o), -1).mean(1), len(y), torch.device("cpu")
    )
    for o, t in zip(out.split(size), y.split(size), strict=True):
        adding.add(o, t)
    return adding.tally().scores(y).metrics


def soft(out: Tensor) -> np.ndarray:
    return out.double().softmax(-1).numpy()


FLAT, SEEN = PLACES[PLACES != NO_LABEL].numpy(), PLACED[PLACES != NO_LABEL]
SAYS, IS, PLACE_SAYS = LOGITS.argmax(1).numpy(), CLASSES.numpy(), SEEN.argmax(1).numpy()
L, S = LABELS.numpy().astype(int), (SAID > 0).numpy().astype(int)
CASES: list[tuple[str, str, Tensor, Tensor, Callable[[], float]]] = [
    ("accuracy", "classes", LOGITS, CLASSES, lambda: sk.accuracy_score(IS, SAYS)),
    ("accuracy", "classes", PLACED, PLACES, lambda: sk.accuracy_score(FLAT, PLACE_SAYS)),
    ("accuracy", "labels", SAID, LABELS, lambda: sk.accuracy_score(L, S)),
    ("top-3", "classes", LOGITS, CLASSES, lambda: sk.top_k_accuracy_score(IS, LOGITS.numpy(), k=3, labels=range(K))),
    ("top-2", "classes", PLACED, PLACES, lambda: sk.top_k_accuracy_score(FLAT, SEEN.numpy(), k=2, labels=range(K))),
    ("f1", "classes", LOGITS, CLASSES, lambda: sk.f1_score(IS, SAYS, average="macro")),
    ("f1", "classes", PLACED, PLACES, lambda: sk.f1_score(FLAT, PLACE_SAYS, average="macro")),
    ("f1", "labels", SAID, LABELS, lambda: sk.f1_score(L, S, average="macro")),
    ("f1-micro", "classes", LOGITS, CLASSES, lambda: sk.f1_score(IS, SAYS, average="micro")),
    ("f1-micro", "classes", PLACED, PLACES, lambda: sk.f1_score(FLAT, PLACE_SAYS, average="micro")),
    ("f1-micro", "labels", SAID, LABELS, lambda: sk.f1_score(L, S, average="micro")),
    ("auc", "classes", LOGITS, CLASSES, lambda: sk.roc_auc_score(IS, soft(LOGITS), multi_class="ovr")),
    ("auc", "classes", PLACED, PLACES, lambda: sk.roc_auc_score(FLAT, soft(SEEN), multi_class="ovr")),
    ("auc", "labels", ROUGH, LABELS, lambda: sk.roc_auc_score(L, ROUGH.numpy(), average="macro")),
    ("perplexity", "classes", LOGITS, CLASSES, lambda: math.exp(sk.log_loss(IS, soft(LOGITS)))),
    ("perplexity", "classes", PLACED, PLACES, lambda: math.exp(sk.log_loss(FLAT, soft(SEEN)))),
    ("mse", "numbers", GUESSES, NUMBERS, lambda: sk.mean_squared_error(NUMBERS, GUESSES)),
    ("mae", "numbers", GUESSES, NUMBERS, lambda: sk.mean_absolute_error(NUMBERS, GUESSES)),
    ("r2", "numbers", GUESSES, NUMBERS, lambda: sk.r2_score(NUMBERS, GUESSES)),
    ("mse", "numbers", GUESSES[:, :1], NUMBERS[:, 0], lambda: sk.mean_squared_error(NUMBERS[:, 0], GUESSES[:, 0])),
    ("r2", "numbers", GUESSES[:, :1], NUMBERS[:, 0], lambda: sk.r2_score(NUMBERS[:, 0], GUESSES[:, 0])),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{c[1]}-{c[2].dim()}" for c in CASES])
def test_metrics_are_those_of_scikit_learn(case: tuple[str, str, Tensor, Tensor, Callable[[], float]]) -> None:
    name, target, out, y, theirs = case
    for size in (7, 20, N):
        assert scores(name, out, y, target, size)[name] == pytest.approx(theirs(), abs=1e-9)


def test_two_classes_have_the_binary_auc() -> None:
    out, y = LOGITS[:, :2], CLASSES % 2
    assert scores("auc", out, y, "classes", 10)["auc"] == pytest.approx(sk.roc_auc_score(y, soft(out)[:, 1]), abs=1e-12)


def test_a_class_that_is_nowhere_counts_as_scikit_learn_counts_it() -> None:
    """F1 leaves it out unless it is said; AUC, which scikit-learn refuses, is of the classes that are there."""
    y = CLASSES % 3
    for out in (LOGITS, LOGITS[:, :3]):
        found = scores(["f1", "auc"], out, y, "classes", 10)
        assert found["f1"] == pytest.approx(sk.f1_score(y, out.argmax(1), average="macro"), abs=1e-12)
    each = [sk.roc_auc_score(y == k, soft(LOGITS)[:, k]) for k in range(3)]
    assert scores("auc", LOGITS, y, "classes", 10)["auc"] == pytest.approx(np.mean(each), abs=1e-12)


def test_labels_that_nobody_has_and_numbers_that_never_change() -> None:
    y = LABELS.clone()
    y[:, 0] = 0
    out = SAID.clone()
    out[:, 0] = -1.0
    theirs = sk.f1_score(y.numpy().astype(int), (out > 0).numpy().astype(int), average="macro", zero_division=0)
    assert scores("f1", out, y, "labels", 9)["f1"] == pytest.approx(theirs, abs=1e-12)
    same = torch.full((8,), 2.0)
    assert scores("r2", same, same, "numbers", 3)["r2"] == 1.0 == sk.r2_score(same, same)
    assert scores("r2", same + 1, same, "numbers", 3)["r2"] == 0.0 == sk.r2_score(same, same + 1)


def test_a_metric_without_a_value_is_none_and_large_numbers_keep_their_digits() -> None:
    assert scores(["auc", "accuracy"], LOGITS, torch.zeros(N, dtype=torch.int64), "classes", 9)["auc"] is None
    years = 1.7e9 + NUMBERS
    found = scores("r2", years + 0.1, years, "numbers", 9)["r2"]
    assert found == pytest.approx(sk.r2_score(years, years + 0.1), abs=1e-9)


def test_several_at_once_are_each_what_they_are_alone() -> None:
    names = ["loss", "auc", "top-2", "f1", "accuracy", "perplexity"]
    found = scores(names, PLACED, PLACES, "classes", 11)
    assert list(found) == names
    for name in names:
        assert found[name] == scores(name, PLACED, PLACES, "classes", 11)[name]
    assert found["loss"] == pytest.approx(PLACED.mean().item(), rel=1e-5)


def test_outputs_that_would_fill_the_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_KEPT", N * K - 1)
    with pytest.raises(FedsmooError, match=f"auc needs all outputs at once, which are {N * K} numbers, more than"):
        scores(["accuracy", "auc"], LOGITS, CLASSES, "classes", 10)
    assert scores(["accuracy", "f1"], LOGITS, CLASSES, "classes", 10)["accuracy"] is not None


@pytest.mark.parametrize("name", ["accuracy", "top-2", "f1", "f1-micro", "auc", "perplexity"])
@pytest.mark.parametrize("sequences", [False, True])
def test_a_label_that_the_loss_ignores_counts_in_no_metric(name: str, sequences: bool) -> None:
    """The label 2 of the targets, besides -100: the metric of all other positions."""
    out, y = (PLACED, PLACES) if sequences else (LOGITS, CLASSES)
    (metric,) = make_metrics(name, "classes")
    adding = Tallying((metric.ignoring(2),), lambda o, t: o.reshape(len(o), -1).mean(1), N, torch.device("cpu"))
    for o, t in zip(out.split(9), y.split(9), strict=True):
        adding.add(o, t)
    kept = (y != 2) & (y != NO_LABEL)
    theirs = scores(name, out[kept], y[kept], "classes", N)
    assert adding.tally().scores(y).metrics == pytest.approx(theirs, rel=1e-12)
    assert theirs != pytest.approx(scores(name, out, y, "classes", N), rel=1e-3)


def test_own_functions_see_every_label() -> None:
    (metric,) = make_metrics([lambda outputs, targets: float((targets == 2).sum())])
    assert metric.ignoring(2) is metric


@pytest.mark.parametrize("scale", [1.0, 40.0, 1e4])
def test_the_area_is_of_the_order_of_outputs_however_far_apart_they_are(scale: float) -> None:
    """Of two classes it is that of their difference, which no softmax rounds to 1; a shift of a row changes nothing."""
    y = torch.randint(2, (300,), generator=torch.Generator().manual_seed(1))
    apart = scale * (torch.randn(300, generator=torch.Generator().manual_seed(2)) + y + 1)
    out = torch.stack([torch.zeros(300), apart], 1)
    want = sk.roc_auc_score(y.numpy(), apart.numpy())
    assert scores("auc", out, y, "classes", 50)["auc"] == pytest.approx(want, abs=1e-12)
    ruled_out = torch.cat([out, torch.full((300, 1), -torch.inf)], 1)
    assert scores("auc", ruled_out, y, "classes", 50)["auc"] == pytest.approx(want, abs=1e-12)
    assert scores("auc", out.masked_fill(out > 0, torch.inf), y, "classes", 50)["auc"] is None


def test_the_odds_of_classes_are_those_of_their_probabilities() -> None:
    p = LOGITS.double().softmax(1)
    torch.testing.assert_close(log_odds(LOGITS.double()), (p / (1 - p)).log(), rtol=1e-9, atol=1e-9)
    assert torch.equal(log_odds(LOGITS[:, :3].round().double() + 7), log_odds(LOGITS[:, :3].round().double()))


@pytest.mark.parametrize("count", [3, 7, 10, 1000])
def test_a_target_that_never_changes_explains_all_or_nothing(count: int) -> None:
    """The mean of equal numbers is rounded: their variance is 0, whatever it comes to."""
    y = torch.full((count, 1), 0.1, dtype=torch.float64)
    assert scores("r2", y + 0.1, y, "numbers", 2)["r2"] == 0
    assert scores("r2", y, y, "numbers", 2)["r2"] == 1
