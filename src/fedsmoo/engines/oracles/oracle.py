"""Gradient oracles: the only things that know a model. ``oracle(w, batch) -> (gradients, losses)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap

from fedsmoo.core import FedsmooError, Round
from fedsmoo.core.gradient import Loss, row_axes, sample_losses
from fedsmoo.engines.oracles.layers import forward_of_many, over_clients
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.statistics.passes import (
    Look,
    Maybe,
    OwnGradient,
    begin,
    carrying,
    end,
    held,
    in_equal_groups,
    real_rows,
    without_padding,
)
from fedsmoo.engines.task import Batch, Draws, Samples, Task
from fedsmoo.metrics.tally import Scores

if TYPE_CHECKING:
    from fedsmoo.compiler.step import GradientKernels

# (w, batch, w as Oracle.working gives it) -> gradients and losses, inside a step that may be compiled
InStep = Callable[[Tensor, Batch, Tensor | None], tuple[Tensor, Tensor]]
LOSS_OF_RUN_ONLY = "these gradients are of the run's own loss only, and the method asks for more: use engine=vmap"


class Oracle:
    """Gradients and losses at flat weights: of one client (``w [P]``) or of C at once (``w [C, P]``).

    Steppers ask an oracle what it needs: buffers of its own for clients that run at the same time (:meth:`replicas`),
    weights in another type (:meth:`working`), and whether it is made of hand-written ``kernels``.
    """

    def __init__(
        self,
        task: Task,
        function: Callable[[Tensor, Batch], tuple[Tensor, Tensor]],
        own: OwnGradient | None = None,
        look: Look | None = None,
    ) -> None:
        self.task, self.function, self._own, self._look = task, function, own, look

    def __call__(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        with products(self.task):
            return self.gradient(w, batch)

    @cached_property
    def slower(self) -> list[str]:
        """What of the work around this oracle cannot go its fastest way, and why: a run's engine says it."""
        return []

    @property
    def kernels(self) -> GradientKernels | None:
        """The hand-written kernels that generated passes may call; ``None``: plain PyTorch, open to a compiler."""
        return None

    def kernels_for(self, w: Tensor, batch: Batch) -> GradientKernels | None:
        """Return what generated passes may call for weights and batches shaped as these; slow work is done here."""
        return self.kernels

    def gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients and losses, in the precision of products that is in force."""
        return self.function(w, batch)

    def own(self, w: Tensor, batch: Batch, loss: Loss, given: Sequence[Any], features: bool) -> tuple[Tensor, Tensor]:
        """Return gradients and values of a loss of a method's own; ``features``: it sees outputs and features.

        Raises:
            FedsmooError: if this oracle knows the run's loss only.
        """
        if self._own is None:
            raise FedsmooError(LOSS_OF_RUN_ONLY)
        return self._own(w, batch, loss, given, features)

    def look(self, w: Tensor, batch: Batch, features: bool) -> Any:
        """Return the model's outputs on a batch, without a gradient; ``features``: a pair, with its features.

        Raises:
            FedsmooError: if this oracle gives gradients only.
        """
        if self._look is None:
            raise FedsmooError(LOSS_OF_RUN_ONLY)
        return self._look(w, batch, features)

    def in_step(self, w: Tensor, batch: Batch, working: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return :meth:`gradient` inside a step that may be compiled; ``working`` is ``w`` as :meth:`working` gives it.

        Runs inside :meth:`serving`.
        """
        return self.gradient(w, batch)

    def ready(self, w: Tensor, batch: Batch) -> InStep:
        """Return :meth:`in_step` for weights and batches shaped as these; what takes time is done here."""
        return self.in_step

    def serving(self) -> AbstractContextManager[None]:
        """Make this the oracle that a compiled step on this thread calls."""
        return nullcontext()

    def working(self, w: Tensor) -> Tensor:
        """Return weights ``[C, P]`` in the type that products are made in: ``w`` itself where that is its own."""
        return w

    def replicas(self, groups: int) -> list[Oracle]:
        """Return oracles for up to ``groups`` groups of clients that run at the same time.

        Only an oracle with buffers of its own gains from groups: it returns itself and copies that share no buffer.
        """
        return [self]

    def batch(self, index: Tensor, weight: Tensor, draws: Draws | None = None, found: Samples | None = None) -> Batch:
        """Return the training samples ``index [..., B]`` in the form that this oracle takes; ``found`` are these."""
        return self.task.batch(index, weight, draws, found=found)

    def with_noise(self, batch: Batch, rnd: Round) -> Batch:
        """Return a batch of C clients, whose random layers draw as the round and step ``rnd`` say, if there are any."""
        return batch

    def free_buffers(self) -> None:
        """Free buffers that can be made again; captured graphs that use them must be dropped as well."""

    def answers(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of one model on stored samples, in eval mode and in the precision that is in force."""
        return self.task.answers(w, x)

    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        """Return loss and metrics of one model on the test part, or on other samples."""
        with products(self.task):
            return self.task.evaluate(w, on, self.answers)


def single_oracle(task: Task) -> Oracle:
    """Make the oracle of one client, by plain autograd."""
    model, layout = task.model, task.model.layout

    def own(w: Tensor, batch: Batch, loss: Loss, given: Sequence[Any], features: bool) -> tuple[Tensor, Tensor]:
        forward = carrying(model, model.with_features if features else model.forward)
        parts = {n: p.requires_grad_() for n, p in layout.split(w.detach()).items()}
        with torch.enable_grad(), model.in_place(held(model, parts, begin(batch))):
            out, after = forward(parts, begin(batch), batch.x, batch.noise)
            value = (batch.weight * sample_losses(loss, out, batch.y, given)).sum()
            grads = torch.autograd.grad(value, list(parts.values()), materialize_grads=True)
        end(batch, after)
        return layout.join(dict(zip(parts, grads, strict=True))), value.detach()

    def look(w: Tensor, batch: Batch, features: bool) -> Any:
        with torch.no_grad():
            forward = carrying(model, model.with_features if features else model.forward)
            return forward(layout.split(w), begin(batch), batch.x, batch.noise)[0]

    return Oracle(task, lambda w, batch: own(w, batch, task.loss, (), False), own, look)


def vmap_oracle(task: Task) -> Oracle:
    """Make the oracle of C clients by ``torch.func.vmap`` over any module."""
    model, layout = task.model, task.model.layout
    plain, with_features = forward_of_many(model), forward_of_many(model, features=True)

    def own(w: Tensor, batch: Batch, loss: Loss, given: Sequence[Any], features: bool) -> tuple[Tensor, Tensor]:
        forward = carrying(model, with_features if features else plain)

        def value(
            parts: dict[str, Tensor], stats: Maybe, real: Maybe, x: Tensor, y: Tensor, weight: Tensor, *given: Any
        ) -> tuple[Tensor, Maybe]:
            with without_padding(real):
                out, after = forward(parts, stats, x, batch.noise)
            return (weight * sample_losses(loss, out, y, given)).sum(), after

        axes = (0, 0, 0, 0, 0, 0, *row_axes(given))
        many = over_clients(grad_and_value(value, has_aux=True), model, batch.noise, axes)
        beside = begin(batch), real_rows(model, batch)
        grads, (losses, after) = many(layout.split(w), *beside, batch.x, batch.y, batch.weight, *given)
        end(batch, after)
        return layout.join(grads), losses

    def look(w: Tensor, batch: Batch, features: bool) -> Any:
        forward = carrying(model, with_features if features else plain)

        def out(parts: dict[str, Tensor], stats: Maybe, real: Maybe, x: Tensor) -> Any:
            with without_padding(real):
                return forward(parts, stats, x, batch.noise)[0]

        with torch.no_grad():
            beside = begin(batch), real_rows(model, batch)
            return over_clients(out, model, batch.noise)(layout.split(w), *beside, batch.x)

    equal, looked = in_equal_groups(model, own, look)
    return Oracle(task, lambda w, batch: equal(w, batch, task.loss, (), False), equal, looked)


def hand_oracle(task: Task) -> Oracle:
    """Make the oracle of C clients by the model's own hand-batched forward and one backward for all.

    Features are those of ``vmap``: a hand-batched forward has no layers to listen to.

    Raises:
        FedsmooError: if the model has no hand-batched forward.
    """
    layout, batched, general = task.model.layout, task.model.batched, vmap_oracle(task)
    if batched is None:
        raise FedsmooError(f"the model {type(task.model.module).__name__} has no hand-batched forward: use engine=vmap")

    def loss(parts: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        out = batched(parts, batch.x).flatten(0, 1)
        each = task.loss(out, batch.y.flatten(0, 1)).view(batch.weight.shape)
        losses = (batch.weight * each).sum(1)
        return losses.sum(), losses

    gradients = grad(loss, has_aux=True)

    def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        grads, losses = gradients(layout.split(w), batch)
        return layout.join(grads), losses

    def own(w: Tensor, batch: Batch, loss: Loss, given: Sequence[Any], features: bool) -> tuple[Tensor, Tensor]:
        if features:
            return general.own(w, batch, loss, given, features)

        def of_one(out: Tensor, y: Tensor, *given: Any) -> Tensor:
            return sample_losses(loss, out, y, given)

        each = vmap(of_one, (0, 0, *row_axes(given)), randomness="error")

        def value(parts: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            losses = (batch.weight * each(batched(parts, batch.x), batch.y, *given)).sum(1)
            return losses.sum(), losses

        grads, losses = grad(value, has_aux=True)(layout.split(w))
        return layout.join(grads), losses

    def look(w: Tensor, batch: Batch, features: bool) -> Any:
        if features:
            return general.look(w, batch, features)
        with torch.no_grad():
            return batched(layout.split(w), batch.x)

    return Oracle(task, gradient, own, look)
