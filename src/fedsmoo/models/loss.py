"""The loss of a model's outputs on each sample, by name or from a user's file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.core.errors import FedsmooError, brief, unknown
from fedsmoo.core.user_code import is_in_file, options_of, user_object, with_options

# outputs [B, ...], labels [B, ...] -> one loss per sample [B]
SampleLoss = Callable[[Tensor, Tensor], Tensor]
ARGUMENTS = ("outputs", "labels")
IGNORED = -100  # the label of a position that has none, as PyTorch has it


def cross_entropy(
    out: Tensor, y: Tensor, ignore_index: int = IGNORED, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """cross-entropy of each sample; of a sequence the mean over its labelled positions, 0 if it has none"""
    each = F.cross_entropy(
        out.flatten(0, -2), y.flatten(), weight, ignore_index=ignore_index, reduction="none",
        label_smoothing=label_smoothing,
    ).view(y.shape)  # fmt: skip
    return each if each.dim() == 1 else labelled_mean(each.flatten(1), (y != ignore_index).flatten(1))


def labelled_mean(each: Tensor, labelled: Tensor) -> Tensor:
    """Return the mean of each row over the positions that are labelled, 0 without any; the others must be 0.

    The factor is exactly 1 where all are: such a mean has the bits of a plain one.
    """
    count = labelled.sum(1).clamp(min=1).to(each.dtype)
    return each.mean(1) * (each.shape[1] / count)


class CrossEntropy(nn.Module):
    """Cross-entropy with options, as PyTorch's with ``reduction="none"``.

    Args:
        ignore_index: label of positions that do not count.
        label_smoothing: share of the target that is spread over all classes, in [0, 1).
        weights: one number for each class, by which losses of its samples are multiplied; batches are divided by the
            number of samples all the same, not by the sum of the weights.
    """

    def __init__(
        self,
        ignore_index: int = IGNORED,
        label_smoothing: float = 0.0,
        weights: Sequence[float] | str | None = None,
    ) -> None:
        super().__init__()
        what = "of the loss cross_entropy"
        if not isinstance(ignore_index, int) or isinstance(ignore_index, bool):
            raise FedsmooError(f"ignore_index {what} is {brief(ignore_index)}, but must be a whole number")
        if not isinstance(label_smoothing, int | float) or not 0 <= label_smoothing < 1:
            raise FedsmooError(f"label_smoothing {what} is {brief(label_smoothing)}, but must be in [0, 1)")
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.weights: Tensor | None
        self.register_buffer("weights", None if weights is None else class_weights(weights, f"weights {what}"))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        weight = None if self.weights is None else self.weights.to(out.dtype)  # half the bits under autocast
        return cross_entropy(out, y, self.ignore_index, self.label_smoothing, weight)


def class_weights(given: Sequence[float] | str, what: str) -> Tensor:
    """Return the weights of classes from a list, or from numbers with commas between them."""
    values = given.split(",") if isinstance(given, str) else given
    try:
        found = [float(v) for v in values]
    except (TypeError, ValueError):
        found = []
    if not found or not all(math.isfinite(v) and v >= 0 for v in found) or not any(found):
        raise FedsmooError(
            f"{what} are {brief(given)}, but must be a number for each class, 0 or above, such as [1, 2]"
        )
    return torch.tensor(found, dtype=torch.float64)


LOSSES: dict[str, SampleLoss] = {"cross_entropy": cross_entropy}
WITH_OPTIONS: dict[str, Callable[..., SampleLoss]] = {"cross_entropy": CrossEntropy}


def is_cross_entropy(loss: SampleLoss) -> bool:
    """Return whether a loss is ours of that name, whatever its options: it applies a softmax to the outputs."""
    return loss is cross_entropy or isinstance(loss, CrossEntropy)


def loss_options(name: str) -> dict[str, Any]:
    """Return the options of a loss of ours and their defaults."""
    return (options_of(WITH_OPTIONS[name]) or {}) if name in WITH_OPTIONS else {}


def make_loss(spec: str, options: Mapping[str, Any] | None = None) -> SampleLoss:
    """Return the loss with a name of ours, or the one in a user's file, with its options.

    Raises ``FedsmooError`` for a name that nobody has, and for options that it has not.
    """
    if is_in_file(spec):
        return with_options(user_object(spec, "loss"), f"loss {spec!r}", ARGUMENTS, options or {})
    if spec not in LOSSES:
        raise unknown("loss", spec, LOSSES)
    if not options:
        return LOSSES[spec]
    known = loss_options(spec)
    for name in options:
        if not known:
            raise FedsmooError(f"loss {spec!r} has no options: leave out {', '.join(options)}")
        if name not in known:
            raise unknown(f"option of the loss {spec}", name, known)
    return WITH_OPTIONS[spec](**options)
