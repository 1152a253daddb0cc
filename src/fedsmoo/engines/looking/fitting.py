"""Whether a model, a loss, a method and the data fit each other: looked at before a run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.contract.form import Scale
from fedsmoo.core.user_code import call
from fedsmoo.data.targets import CLASSES, LABELS
from fedsmoo.models.loss import (
    LOSSES,
    bce,
    cross_entropy,
    function_of,
    has_softmax,
    ignored_by,
    is_cross_entropy,
    label_bound,
    refuse_remembering,
)
from fedsmoo.models.modules.outputs import LOGITS, parts_of
from fedsmoo.models.modules.process import uncompiled

if TYPE_CHECKING:
    from fedsmoo.data.dataset import Dataset
    from fedsmoo.engines.task import Task
    from fedsmoo.models.base import FlatModel

MANY = 16  # outputs between 0 and 1, and no other, that no logits happen to be


def outputs_of(task: Task, x: Tensor) -> Any:
    """Return what a model makes of stored samples before training; ``None`` if it fails, which the first round says."""
    task.model.eval()
    try:
        with torch.no_grad(), uncompiled():
            w = task.model.initial().to(task.device, task.dtype)
            return task.model.forward(task.model.layout.split(w), task.inputs(x))
    except Exception:
        return None


def refuse_reduced_loss(task: Task) -> None:
    """Refuse a user's loss that fails, or gives no number for each sample: a mean would count padding as samples."""
    if task.loss is cross_entropy:
        return
    y = task.targets(task.data.y_train[:2])
    out = outputs_of(task, task.data.x_train[:2])
    if out is None:
        return
    shapes = f"outputs {list(out.shape)} and labels {list(y.shape)}"
    with torch.no_grad():
        found = call(task.loss, f"the loss cannot be computed from {shapes}", out, y)
    if not isinstance(found, Tensor) or found.shape != y.shape[:1]:
        shape = f"the shape {list(found.shape)}" if isinstance(found, Tensor) else f"the type {type(found).__name__}"
        raise FedsmooError(
            f"the loss of {len(y)} samples has {shape}, but must be a tensor of one loss per sample, [{len(y)}]: with "
            'PyTorch\'s losses write reduction="none", as in partial(F.cross_entropy, reduction="none")'
        )
    refuse_remembering(task.loss, out, y)


def refuse_no_features(task: Task, algorithm: Algorithm) -> None:
    """Refuse a model without features, ``[B, F]``, where the method reads them."""
    if not algorithm.features:
        return
    w = task.model.initial().to(task.device, task.dtype)
    task.model.eval()
    with torch.no_grad():
        _, found = task.model.with_features(task.model.layout.split(w), task.inputs(task.data.x_train[:2]))
    if len(found) != 2:
        raise FedsmooError(
            f"the features of 2 samples have the shape {list(found.shape)}, but must have a row for each: name another "
            "layer, which reads such, in the module: feature_layer = 'NAME'"
        )


def scale_of(model: FlatModel, data: Dataset, dtype: torch.dtype, device: torch.device) -> Scale:
    """Return what vectors a method sees in a run: of which size, and of how many outputs and features."""
    try:
        features = getattr(model.feature_layer(), "in_features", Scale().features)
    except FedsmooError:  # a method that reads features is refused later
        features = Scale().features
    return Scale(model.layout.size, dtype, device, data.outputs, features)


def refuse_other_targets(task: Task, algorithm: Algorithm) -> None:
    """Refuse a method whose own loss is of one class a sample, on data with other targets."""
    data = task.data
    if algorithm.of_classes and (data.target != CLASSES or data.y_train.dim() > 1):
        what = "a class for every position" if data.target == CLASSES else data.target
        raise FedsmooError(
            f"{algorithm.label} trains on one class a sample, but the targets of {data.name!r} are {what}: choose "
            "another method or attack"
        )


def refuse_other_outputs(task: Task) -> None:
    """Refuse a user's model whose outputs are too few for the classes, or of a shape that cannot be measured."""
    refuse_few_outputs(task)
    refuse_unmeasured(task)


def refuse_few_outputs(task: Task) -> None:
    """Refuse a user's model with fewer outputs than there are classes, where the loss needs one for each."""
    if not is_cross_entropy(task.loss):
        return
    out = outputs_of(task, task.data.x_train[:1])
    ignored = ignored_by(task.loss)
    largest = max(int(y.masked_fill(y == ignored, 0).max()) for y in (task.data.y_train, task.data.y_test) if len(y))
    if isinstance(out, Tensor) and out.dim() > 1 and out.shape[-1] <= largest:
        has = f"{out.shape[-1]} output{'' if out.shape[-1] == 1 else 's'}"
        raise FedsmooError(
            f"the model has {has}, but the labels of {task.data.name!r} go up to {largest}: it needs "
            f"{largest + 1} outputs, one for each class from 0{hint_of_others(task)}"
        )


def refuse_unmeasured(task: Task) -> None:
    """Refuse outputs that a user's loss can read, but not the metric: the first evaluation would fail."""
    ours = is_cross_entropy(task.loss) or function_of(task.loss) in LOSSES.values()
    named = [m.name for m in task.metrics if m.sums is not None or (m.whole is not None and not m.mine)]
    out, y = outputs_of(task, task.data.x_train[:2]), task.data.y_train[:2]
    if ours or not named or out is None or not (task.data.has_test or task.held):
        return
    fits = out.shape[:-1] == y.shape
    if task.data.target != CLASSES:
        fits = out.shape in (y.shape, (*y.shape, 1)) or y.shape == (*out.shape, 1)
    if not fits:
        raise FedsmooError(
            f"the metric {named[0]} cannot be computed from outputs {list(out.shape)} and targets {list(y.shape)} of 2 "
            'samples: set metrics="loss", or a function of outputs and targets of your own, metrics=[f]'
        )


def others_returned(task: Task) -> dict[str, Tensor]:
    """Return the tensors that a model returns in a tuple or a list behind the first, which is taken, by position."""
    seen: list[Any] = []
    if task.model.output is not None:
        return {}
    hook = task.model.module.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    try:
        outputs_of(task, task.data.x_train[:1])
    finally:
        hook.remove()
    if not seen or not isinstance(seen[-1], tuple | list) or LOGITS in parts_of(seen[-1]):
        return {}
    return {n: part for n, part in list(parts_of(seen[-1]).items())[1:] if isinstance(part, Tensor)}


def hint_of_others(task: Task) -> str:
    """Return which setting takes another tensor of those that a model returns, as the end of a message."""
    others = others_returned(task)
    fit = [n for n, v in others.items() if v.dim() > 1 and v.shape[-1] == task.data.classes] or list(others)
    return (
        f"; it returns several tensors, of which the first is taken: name another one, output={fit[0]!r}" if fit else ""
    )


def note_on_other_tensor(task: Task) -> str | None:
    """Return a warning where a model's first tensor has more outputs than there are classes, and another as many."""
    classes = task.data.classes
    out = outputs_of(task, task.data.x_train[:1]) if is_cross_entropy(task.loss) else None
    if not isinstance(out, Tensor) or out.dim() < 2 or out.shape[-1] <= classes:
        return None
    fit = [n for n, v in others_returned(task).items() if v.dim() == out.dim() and v.shape[-1] == classes]
    if not fit:
        return None
    return (
        f"the model returns several tensors, the first of which has {out.shape[-1]} outputs for {classes} classes and "
        f"is what trains; if the other one of {classes} is meant, say output={fit[0]!r}"
    )


def note_on_probabilities(task: Task) -> str | None:
    """Return a warning where a model's outputs are probabilities and the loss applies a softmax or sigmoid of its own.

    Such a model trains, but badly: its outputs, between 0 and 1, can never be far apart. Logarithms of probabilities
    (``LogSoftmax``) are as good as logits, for log-softmax leaves them as they are. Of several labels all would be said
    besides, for a logit above 0 says one; so they would under a loss that we do not know.
    """
    several = task.data.target == LABELS and label_bound(task.loss) == 0
    if not several and not has_softmax(task.loss):
        return None
    out = outputs_of(task, task.data.x_train[:8])
    if not isinstance(out, Tensor) or out.dim() < 2 or bool((out < 0).any() | (out > 1).any()):
        return None
    last = [m for m in task.model.module.modules() if not list(m.children())][-1]
    between = several and out.numel() >= MANY and bool((out > 0).all() & (out < 1).all())
    if out.shape[-1] > 1 and torch.allclose(out.sum(-1), torch.ones_like(out[..., 0]), atol=1e-4):
        name = "a softmax"
    elif between or (isinstance(last, nn.Sigmoid) and (several or out.shape[-1] > 1)):
        name = "a sigmoid"
    else:
        return None
    if several and function_of(task.loss) is not bce:
        return (
            f"the model ends in {name}, but labels are said where an output is above 0, so metrics count all as said: "
            "return the outputs before it, and bring a loss of these"
        )
    own = "bce applies a sigmoid" if several else "cross_entropy applies a softmax"
    return (
        f"the model ends in {name}, but {own} itself, so it will train badly: return the outputs before it, or bring a "
        "loss of probabilities"
    )
