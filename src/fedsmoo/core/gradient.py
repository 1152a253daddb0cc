"""What a method is given as ``grad``: gradients, outputs and losses on the batch of a local step, and where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsmoo.core.blame import Place, calling_frames, place_of
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.round import Missing, Round

Loss = Callable[..., Tensor]  # of ONE client: (outputs [B, K], labels [B], *given) -> one loss per sample, [B]
Each = Callable[..., Tensor]  # of ONE client, too: (outputs, labels, *given) -> numbers of each sample, [B, ...]
Take = Callable[..., tuple[Tensor, Tensor]]  # (v, running=None) -> gradients and losses at v


class Running:
    """The running statistics of models in a local step, ``[.., S]``: before it, and after its first gradient.

    The first gradient that a method asks for in a step changes them, and no other: all of them are of one batch.
    """

    def __init__(self, before: Tensor) -> None:
        self.before = self.now = before
        self.counted = False

    def take(self, after: Tensor) -> None:
        """Take what a gradient has made of the statistics, if it is the first."""
        if not self.counted:
            self.now, self.counted = after, True


class BatchModel(Protocol):
    """The model on the batch of a step; of C clients at once, each with a batch of its own."""

    sees_features: bool  # whether the method declares that it reads features

    def carrying(self, running: Running) -> BatchModel:
        """Return the same model with these running statistics."""

    def own(self, v: Tensor, loss: Loss, given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return gradients and values of the weighted sum of a loss of the method's own."""

    def outputs(self, v: Tensor) -> Tensor:
        """Return the outputs ``[.., B, K]``, without a gradient."""

    def features(self, v: Tensor) -> Tensor:
        """Return what the model's last layer reads, ``[.., B, F]``, without a gradient."""

    def mean(self, v: Tensor, each: Each, given: Sequence[Any]) -> Tensor:
        """Return the means over the samples of each client of what ``each`` makes of them, ``[.., D]``."""

    def loss(self, v: Tensor) -> Tensor:
        """Return the run's loss of each client, ``[.., 1]``, without a gradient."""


class StepGradient:
    """The gradient of a local step at any vector, on the step's batch, and what else the batch can tell.

    - ``grad(v)``: the gradient of the run's loss at ``v``.
    - ``grad(v, loss, *given)``: that of ``loss(out, y, *given)``, a loss of the method's own, written for ONE client:
      outputs ``[B, K]`` and labels ``[B]`` give one loss per sample, ``[B]``. For a method that declares
      ``features = True``, ``out`` is a pair, outputs and features. Tensors in ``given`` have a row for each of C
      clients (``grad.outputs(down.w)``, ``grad.rnd.labels``), of which the loss sees its client's.
    - ``grad.outputs(v)`` and ``grad.features(v)``: of the model at ``v``, without a gradient. Of C clients at once each
      has rows for the longest batch: for a loss, which is told which of them are samples, and not to be added up.
    - ``grad.mean(v, each, *given)``: the mean over the batch's samples of what ``each(out, y, *given)``, written as a
      loss is, makes of them: a number per sample, ``[B]``, or D of them, ``[B, ...]``; ``[.., D]``, without a gradient.
    - ``grad.loss(v)``: the run's loss at ``v``, ``[.., 1]``, without a gradient.
    - ``grad.rnd``: the :class:`Round` at this step.

    Engines make one for each step, whose loss is that of its first gradient, or else of its first ``grad.loss``.

    Args:
        take: returns gradients and losses at a vector, of one client or of C at once; a model with running statistics
            is given them as ``running``.
        rnd: the round at this step.
        model: the model on the step's batch.
        clients: C; ``None``: one client, whose vectors have no client axis.
    """

    def __init__(self, take: Take, rnd: Round, model: BatchModel | None = None, clients: int | None = None) -> None:
        self.take, self.rnd, self.model, self.clients = take, rnd, model, clients
        self.losses: list[Tensor] = []  # at each gradient
        self.looked: list[Tensor] = []  # at each grad.loss
        self.asked_more = False  # than gradients of the run's loss
        self.copied: StepGradient | None = None  # whose copy this is

    def told(self, rnd: Round) -> StepGradient:
        """Return the same gradient for a method that is told another round; what is asked of it is asked of this."""
        return self._copy(self.take, rnd, self.model)

    def carrying(self, running: Running) -> StepGradient:
        """Return the same gradient of models with these running statistics, which it changes."""
        model = None if self.model is None else self.model.carrying(running)
        return self._copy(partial(self.take, running=running), self.rnd, model)

    def _copy(self, take: Take, rnd: Round, model: BatchModel | None) -> StepGradient:
        copy = StepGradient(take, rnd, model, self.clients)
        copy.losses, copy.looked, copy.copied = self.losses, self.looked, self
        return copy

    def __call__(self, v: Tensor, loss: Loss | None = None, *given: Any) -> Tensor:
        if loss is None:
            gradient, value = self.take(v)
        else:
            refuse_without_rows(given, self.clients)
            gradient, value = self._more().own(self._rows(v), loss, given)
        self.losses.append(value)
        return gradient

    @property
    def first_loss(self) -> Tensor:
        """The step's loss, which a run records."""
        return (self.losses or self.looked)[0]

    def loss(self, v: Tensor) -> Tensor:
        """Return the run's loss at ``v`` on the step's batch: ``[1]``, or ``[C, 1]`` of C clients."""
        value = self._more().loss(self._rows(v))
        self.looked.append(value[..., 0])
        return value

    def mean(self, v: Tensor, each: Each, *given: Any) -> Tensor:
        """Return the mean of ``each(out, y, *given)`` at ``v`` over the step's samples: ``[D]``, or ``[C, D]``."""
        refuse_without_rows(given, self.clients)
        return self._more().mean(self._rows(v), each, given)

    def outputs(self, v: Tensor) -> Tensor:
        """Return the model's outputs at ``v`` on the step's batch: ``[B, K]``, or ``[C, B, K]`` of C clients."""
        return self._more().outputs(self._rows(v))

    def features(self, v: Tensor) -> Tensor:
        """Return what the model's last layer reads at ``v`` on the step's batch: ``[B, F]``, or ``[C, B, F]``."""
        model = self._more()
        if not model.sees_features:
            raise FedsmooError(
                f"{place_of(calling_frames())}: reads features, which a method must declare: features = True"
            )
        return model.features(self._rows(v))

    def _rows(self, v: Tensor) -> Tensor:
        return v if self.clients is None else v.expand(self.clients, -1)  # one model for all, such as down.w

    def _more(self) -> BatchModel:
        self.asked_more = True
        if self.copied is not None:
            self.copied._more()
        assert self.model is not None
        return self.model


def sample_losses(loss: Loss, out: Any, y: Tensor, given: Sequence[Any]) -> Tensor:
    """Return one client's losses, one per sample.

    Raises:
        FedsmooError: for any other shape: a mean would count padding as samples, and a tensor of all clients that the
            loss closes over would broadcast.
    """
    each = loss(out, y, *given)
    if not isinstance(each, Tensor) or each.shape != y.shape[:1]:
        found = f"the shape {list(each.shape)}" if isinstance(each, Tensor) else f"the type {type(each).__name__}"
        hint = "take sums over a sample's own numbers only, and hand over tensors of clients, grad(v, loss, tensor)"
        if isinstance(each, Tensor) and each.dim() == 0:
            hint = "of PyTorch's losses write reduction='none'; elsewhere leave out the mean or sum over samples"
        raise FedsmooError(
            f"{place_of_loss(loss)}: the loss of {len(y)} samples has {found}, but must be one per sample, [{len(y)}]: "
            f"{hint}"
        )
    return each


def sample_rows(each: Each, out: Any, y: Tensor, given: Sequence[Any]) -> Tensor:
    """Return what a function of one client makes of its samples, a row for each: ``[B, D]``.

    Raises:
        FedsmooError: for any other shape: a mean would count padding as samples.
    """
    rows = each(out, y, *given)
    if not isinstance(rows, Tensor) or rows.shape[:1] != y.shape[:1]:
        found = f"the shape {list(rows.shape)}" if isinstance(rows, Tensor) else f"the type {type(rows).__name__}"
        raise FedsmooError(
            f"{place_of_loss(each)}: what grad.mean is given returns {found} for {len(y)} samples, but must return a "
            f"row for each, [{len(y)}, ...]: the mean over them is taken afterwards"
        )
    return rows.flatten(1) if rows.dim() > 1 else rows[:, None]


def weighed(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum of samples' rows ``[.., B, D]``; those of the weight 0 are no samples, and anything."""
    weight = weight[..., None]
    return torch.where(weight != 0, weight * rows, 0.0).sum(-2)


def place_of_loss(loss: Loss) -> str:
    """Return where a loss is written, as far as Python knows."""
    code = getattr(getattr(loss, "func", loss), "__code__", None)  # inside of functools.partial
    return repr(loss) if code is None else str(Place(code.co_filename, code.co_firstlineno, code.co_name))


def refuse_without_rows(given: Sequence[Any], clients: int | None) -> None:
    """Refuse tensors for a loss that have no row for each client; a single number without an axis is for all."""
    for v in given:
        if isinstance(v, Missing):
            v.refuse()
        if clients is None or not isinstance(v, Tensor) or v.dim() == 0 or len(v) == clients:
            continue
        raise FedsmooError(
            f"{place_of(calling_frames())}: a loss is given a tensor of shape {list(v.shape)} for {clients} clients at "
            "once, but it must have a row for each: outputs [C, B, K], labels [C, K], numbers [C, 1]"
        )


def row_axes(given: Sequence[Any]) -> tuple[int | None, ...]:
    """Return the client axis of each thing that a loss of C clients is given, for ``vmap``; ``None``: it has none."""
    return tuple(0 if isinstance(v, Tensor) and v.dim() else None for v in given)
