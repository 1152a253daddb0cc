"""What metrics compute: sums over batches of outputs, which are small, or something of all outputs of a part.

Outputs are ``[B, ..., K]`` for classes ``[B, ...]``, where -100 is a position without a label, which never counts; in
the shape of their targets for numbers; and logits ``[B, K]`` for several labels: a label is said where its logit is
above 0, a probability of one half. No sum waits for a device, so that an evaluation can be captured as one graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.data.targets import NO_LABEL, classes_said
from fedsmoo.models.loss import matched

Sums = Callable[[Tensor, Tensor], Tensor]  # outputs and targets of a batch -> sums, float64 [S]


def stack_sums(y: Tensor, *sums: Tensor) -> Tensor:
    """Return sums in one vector; of sequences with the number of labelled positions behind them."""
    if y.dim() > 1:
        sums = (*sums, (y != NO_LABEL).sum())
    return torch.stack([s.double() for s in sums])


def without_label(label: int, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and classes in which one label, now -100, does not count; both with an axis of positions."""
    return out.unsqueeze(1), y.masked_fill(y == label, NO_LABEL).unsqueeze(1)


def mean(sums: np.ndarray, samples: int) -> float:
    """Return a sum divided by the number of samples, or of labelled positions where they were counted; NaN of none."""
    count = sums[1] if len(sums) > 1 else samples
    return float(sums[0] / count) if count else math.nan


def count_right(out: Tensor, y: Tensor) -> Tensor:
    """Count the classes that were said right; positions without a label are never."""
    return stack_sums(y, (classes_said(out) == y).sum())


def count_all_right(out: Tensor, y: Tensor) -> Tensor:
    """Count the samples whose labels were all said right; NaN says neither that there is one nor that there is none."""
    return (((out > 0) == (y > 0.5)) & ~out.isnan()).all(1).sum().double()[None]


def count_in_top(k: int) -> Sums:
    """Return a function that counts the classes among the k that were thought most likely."""

    def sums(out: Tensor, y: Tensor) -> Tensor:
        among = (out.topk(k, -1).indices == y.unsqueeze(-1)).any(-1)
        return stack_sums(y, (among & ~out.isnan().any(-1)).sum())  # what is NaN would be on top

    return sums


def sum_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Sum the cross-entropies of labelled positions."""
    each = F.cross_entropy(out.flatten(0, -2).double(), y.flatten(), ignore_index=NO_LABEL, reduction="sum")
    return stack_sums(y, each)


def perplexity(sums: np.ndarray, samples: int) -> float:
    """Return e to the mean cross-entropy; infinite where that is too large for a number."""
    at = mean(sums, samples)
    return math.exp(at) if at < 700 else math.inf


def confusion(out: Tensor, y: Tensor) -> Tensor:
    """Count, for each class, where it was said rightly, where it is, and where it was said: ``[3 K]``."""
    said, is_there = classes_said(out).flatten(), (y != NO_LABEL).flatten().double()
    at, hit = y.flatten().clamp(min=0), (said == y.flatten()).double()
    zero = torch.zeros(out.shape[-1], dtype=torch.float64, device=out.device)
    is_said = is_there * (said >= 0)
    sums = (at, hit), (at, is_there), (said.clamp(min=0), is_said)
    return torch.cat([zero.index_add(0, place, count) for place, count in sums])


def label_confusion(out: Tensor, y: Tensor) -> Tensor:
    """Count the same for each of several labels."""
    said, there = (out > 0).double(), (y > 0.5).double()
    return torch.cat([(said * there).sum(0), there.sum(0), said.sum(0)])


def macro_f1(sums: np.ndarray, samples: int) -> float:
    """Return the mean over classes of F1, of those that are there or were said."""
    hit, there, said = sums.reshape(3, -1)
    met = there + said > 0
    return float((2 * hit[met] / (there + said)[met]).mean()) if met.any() else 0.0


def label_macro_f1(sums: np.ndarray, samples: int) -> float:
    """Return the mean of F1 over all labels; it is 0 for one that is nowhere and was never said."""
    hit, there, said = sums.reshape(3, -1)
    return float((2 * hit / np.maximum(there + said, 1)).mean())


def micro_f1(sums: np.ndarray, samples: int) -> float:
    """Return F1 of all classes or labels together."""
    hit, there, said = sums.reshape(3, -1).sum(1)
    return float(2 * hit / max(there + said, 1))


def sum_squared_errors(out: Tensor, y: Tensor) -> Tensor:
    """Sum the squared errors of samples, each the mean over its numbers."""
    return errors(out, y).square().mean(1).sum()[None]


def sum_absolute_errors(out: Tensor, y: Tensor) -> Tensor:
    """Sum the absolute errors of samples, each the mean over its numbers."""
    return errors(out, y).abs().mean(1).sum()[None]


def errors(out: Tensor, y: Tensor) -> Tensor:
    """Return the errors of numbers, ``[B, D]``."""
    return (matched(out, y, "the metric").double() - y.double()).reshape(len(y), -1)


def r2(out: Tensor, y: Tensor) -> float:
    """Return the share of the variance that is explained, the mean over numbers; of one that never changes, 0 or 1."""
    left = errors(out, y).square().sum(0)
    each = y.double().reshape(len(y), -1)
    total = (each - each.mean(0)).square().sum(0)
    moves = (each != each[:1]).any(0) & (total > 0)  # rounding of the mean gives equal numbers a variance, too
    share = 1 - left / torch.where(moves, total, 1)
    return float(torch.where(moves, share, (left == 0).double()).mean())


def auc(out: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve, each class against the others: the mean over classes that have both."""
    labelled = y.flatten() != NO_LABEL
    odds = log_odds(out.flatten(0, -2)[labelled].double())
    return mean_area(odds.numpy(), F.one_hot(y.flatten()[labelled], out.shape[-1]).numpy())


def log_odds(out: Tensor) -> Tensor:
    """Return ``log(p / (1 - p))`` of each class ``[N, K]``: the order of the probabilities p, without their rounding.

    Probabilities of outputs that are far apart are all 1, as if none were more likely than another.
    """
    out = out - out.amax(1, keepdim=True)  # rows that differ by a number have the same
    none = torch.full_like(out[:, :1], -torch.inf)
    before = torch.cat([none, out.logcumsumexp(1)[:, :-1]], 1)  # log of the sum over the classes before, and behind
    behind = torch.cat([none, out.flip(1).logcumsumexp(1)[:, :-1]], 1).flip(1)
    return out - torch.logaddexp(before, behind)


def label_auc(out: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve, the mean over labels that some samples have and others have not."""
    return mean_area(out.double().where(out.isfinite(), torch.nan).numpy(), (y > 0.5).long().numpy())


def ranks_of(values: np.ndarray) -> np.ndarray:
    """Return the ranks of numbers, from one on; equal numbers have the mean of theirs.

    >>> ranks_of(np.array([0.5, 2.0, 0.5, -1.0]))
    array([2.5, 4. , 2.5, 1. ])
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def mean_area(scores: np.ndarray, there: np.ndarray) -> float:
    """Return the mean over columns of the share of pairs that are ordered rightly, a tie being half a pair; or NaN.

    A score may be infinite, as that of a class which is out of the question, but no NaN.
    """
    positive = there.sum(0)
    both = (positive > 0) & (positive < len(there))
    if not both.any() or np.isnan(scores).any():
        return math.nan
    ranks = np.stack([ranks_of(column) for column in scores[:, both].T], 1)
    yes = positive[both].astype(float)
    above = (ranks * there[:, both]).sum(0) - yes * (yes + 1) / 2
    return float((above / (yes * (len(there) - yes))).mean())
