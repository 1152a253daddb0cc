"""The loss of a model's outputs on each sample, by name or from a user's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.user_code import is_in_file, user_object, with_options

# outputs [B, ...], labels [B, ...] -> one loss per sample [B]
SampleLoss = Callable[[Tensor, Tensor], Tensor]
ARGUMENTS = ("outputs", "labels")


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """cross-entropy of each sample; where every position of a sample has a label, their mean"""
    loss = F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    return loss if loss.dim() == 1 else loss.flatten(1).mean(1)


LOSSES: dict[str, SampleLoss] = {"cross_entropy": cross_entropy}


def make_loss(spec: str, options: Mapping[str, Any] | None = None) -> SampleLoss:
    """Return the loss with a name of ours, or the one in a user's file, with its options.

    Raises ``FedsmooError`` for a name that nobody has, and for options where there are none.
    """
    if is_in_file(spec):
        return with_options(user_object(spec, "loss"), f"loss {spec!r}", ARGUMENTS, options or {})
    if spec not in LOSSES:
        raise unknown("loss", spec, LOSSES)
    if options:
        raise FedsmooError(f"loss {spec!r} has no options: leave out {', '.join(options)}")
    return LOSSES[spec]
