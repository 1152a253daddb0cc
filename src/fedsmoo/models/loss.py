"""The loss of a model's outputs on each sample, by name or from a user's file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.core.errors import FedsmooError, brief, unknown
from fedsmoo.core.random.streams import generator_apart
from fedsmoo.core.user_code import is_in_file, options_of, user_object, with_options
from fedsmoo.data.targets import CLASSES, LABELS, NO_LABEL, NUMBERS

# outputs [B, ...], labels [B, ...] -> one loss per sample [B]
SampleLoss = Callable[[Tensor, Tensor], Tensor]
ARGUMENTS = ("outputs", "labels")


def cross_entropy(
    out: Tensor, y: Tensor, ignore_index: int = NO_LABEL, label_smoothing: float = 0.0, weight: Tensor | None = None
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
        self, ignore_index: int = NO_LABEL, label_smoothing: float = 0.0, weights: Sequence[float] | str | None = None
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


def mse(out: Tensor, y: Tensor) -> Tensor:
    """squared error of each sample, the mean over its numbers"""
    return each_sample(F.mse_loss(matched(out, y, "mse"), y, reduction="none"))


def mae(out: Tensor, y: Tensor) -> Tensor:
    """absolute error of each sample, the mean over its numbers"""
    return each_sample(F.l1_loss(matched(out, y, "mae"), y, reduction="none"))


def huber(out: Tensor, y: Tensor) -> Tensor:
    """Huber's loss of each sample: half the square of errors below 1, and linear beyond; the mean over its numbers"""
    return each_sample(F.huber_loss(matched(out, y, "huber"), y, reduction="none"))


def bce(out: Tensor, y: Tensor) -> Tensor:
    """binary cross-entropy of each sample with several labels, from logits; the mean over its labels"""
    return each_sample(F.binary_cross_entropy_with_logits(matched(out, y, "bce"), y, reduction="none"))


def each_sample(loss: Tensor) -> Tensor:
    """Return one loss a sample: the mean over what it has several of."""
    return loss if loss.dim() == 1 else loss.flatten(1).mean(1)


def matched(out: Tensor, y: Tensor, name: str) -> Tensor:
    """Return outputs in the shape of their targets; refuse others, which would be compared all with all."""
    if out.dim() == y.dim() + 1 and out.shape[-1] == 1:
        out = out.squeeze(-1)
    elif y.dim() == out.dim() + 1 and y.shape[-1] == 1:
        out = out.unsqueeze(-1)
    if out.shape != y.shape:
        raise FedsmooError(
            f"{name} cannot compare outputs of the shape {list(out.shape)} with targets of {list(y.shape)}: the model "
            f"needs an output for each target, {list(y.shape[1:]) or 'one a sample'}"
        )
    return out


LOSSES: dict[str, SampleLoss] = {"cross_entropy": cross_entropy, "mse": mse, "mae": mae, "huber": huber, "bce": bce}
# The loss of a run that names none ("auto"), and all that can be computed, by what the targets are.
AUTO, OF_TARGET = "auto", {CLASSES: ("cross_entropy",), NUMBERS: ("mse", "mae", "huber"), LABELS: ("bce", "mse")}
WITH_OPTIONS: dict[str, Callable[..., SampleLoss]] = {"cross_entropy": CrossEntropy}


def is_cross_entropy(loss: SampleLoss) -> bool:
    """Return whether a loss is ours of that name, whatever its options: it applies a softmax to the outputs."""
    return loss is cross_entropy or isinstance(loss, CrossEntropy)


def ignored_by(loss: SampleLoss) -> int:
    """Return the label that does not count in a loss, as far as it says so by ``ignore_index``; else -100.

    >>> ignored_by(nn.CrossEntropyLoss(ignore_index=0, reduction="none")), ignored_by(mse)
    (0, -100)
    """
    said = loss.keywords.get("ignore_index") if isinstance(loss, partial) else getattr(loss, "ignore_index", None)
    return said if isinstance(said, int) and not isinstance(said, bool) else NO_LABEL


def function_of(loss: SampleLoss) -> Any:
    """Return the function inside of what is put around one: ``functools.partial``, copies of what it is given."""
    while isinstance(loss, partial | OnCopies):
        loss = loss.func
    return loss


def has_softmax(loss: SampleLoss) -> bool:
    """Return whether a loss applies a softmax to the outputs: ours, or PyTorch's."""
    inside = function_of(loss)
    return is_cross_entropy(inside) or isinstance(inside, nn.CrossEntropyLoss) or inside is F.cross_entropy


def label_bound(loss: SampleLoss) -> float:
    """Return above which output one of several labels is said: 0 of logits, half where a loss compares outputs with 0
    and 1 themselves.

    >>> label_bound(bce), label_bound(mse)
    (0.0, 0.5)
    """
    return 0.5 if function_of(loss) in (mse, mae, huber) else 0.0


class OnCopies:
    """A user's loss that writes to what it is given, which others still read: it is given copies."""

    def __init__(self, loss: SampleLoss) -> None:
        self.func, self.ignore_index = loss, ignored_by(loss)

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        return self.func(out.clone(), y.clone())


def refuse_trained(loss: SampleLoss) -> None:
    """Refuse a loss with parameters of its own: no client would train or send them."""
    trained = [n for n, p in loss.named_parameters() if p.requires_grad] if isinstance(loss, nn.Module) else []
    if trained:
        raise FedsmooError(
            f"the loss {type(loss).__name__} has the parameter {trained[0]!r}, which would not be trained: make it a "
            "part of the model, or set its requires_grad=False"
        )


def refuse_remembering(loss: SampleLoss, out: Tensor, y: Tensor) -> None:
    """Refuse a loss that answers one question in two ways: it draws random numbers, or keeps something."""
    with torch.no_grad(), generator_apart():
        first, _, again = (loss(o, t) for o, t in ((out, y), (out.flip(0), y.flip(0)), (out, y)))
    if not torch.allclose(first, again, equal_nan=True):
        raise FedsmooError(
            "the loss draws random numbers, or keeps something from one call for the next: it has two values for the "
            "same outputs and labels; let it depend on these alone"
        )


def loss_options(name: str) -> dict[str, Any]:
    """Return the options of a loss of ours and their defaults; ``auto`` may be cross-entropy."""
    made = WITH_OPTIONS.get("cross_entropy" if name == AUTO else name)
    return (options_of(made) or {}) if made else {}


def make_loss(spec: str, options: Mapping[str, Any] | None = None, target: str | None = None) -> SampleLoss:
    """Return the loss with a name of ours, or the one in a user's file, with its options.

    Args:
        spec: a name, ``path/to/file.py:function``, or ``"auto"``, which follows the target.
        options: of the loss.
        target: what the targets are, where that is known already.

    Raises:
        FedsmooError: for a name that nobody has, options that it has not, and a loss of other targets.
    """
    if is_in_file(spec):
        return with_options(user_object(spec, "loss"), f"loss {spec!r}", ARGUMENTS, options or {})
    if spec not in (AUTO, *LOSSES):
        raise unknown("loss", spec, LOSSES)
    known = OF_TARGET[target or CLASSES]
    if target is not None and spec not in (AUTO, *known):
        raise FedsmooError(f"loss is {spec!r}, but the targets are {target}: use {' or '.join(known)}")
    spec = known[0] if spec == AUTO else spec
    if not options:
        return LOSSES[spec]
    has = loss_options(spec)
    for name in options:
        if not has:
            raise FedsmooError(f"loss {spec!r} has no options: leave out {', '.join(options)}")
        if name not in has:
            raise unknown(f"option of the loss {spec}", name, has)
    return WITH_OPTIONS[spec](**options)
