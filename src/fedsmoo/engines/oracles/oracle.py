"""Gradient oracles: the only things that know a model. ``oracle(w, batch) -> (gradients, losses)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap

from fedsmoo.core import FedsmooError
from fedsmoo.engines.task import Batch, Draws, Samples, Task

if TYPE_CHECKING:
    from fedsmoo.compiler.step import GradientKernels


class Oracle:
    """Gradients and losses at flat weights: of one client (``w [P]``) or of C at once (``w [C, P]``).

    Steppers ask an oracle what it needs: buffers of its own for clients that run at the same time (:meth:`replicas`),
    weights in another type (:meth:`working`), and whether it is made of hand-written ``kernels``.
    """

    def __init__(self, task: Task, function: Callable[[Tensor, Batch], tuple[Tensor, Tensor]]) -> None:
        self.task, self.function = task, function

    def __call__(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        with products(self.task):
            return self.gradient(w, batch)

    @property
    def kernels(self) -> GradientKernels | None:
        """The hand-written kernels that generated passes may call; ``None``: plain PyTorch, open to a compiler."""
        return None

    def gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients and losses, in the precision of products that is in force."""
        return self.function(w, batch)

    def in_step(self, w: Tensor, batch: Batch, working: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return :meth:`gradient` inside a step that may be compiled; ``working`` is ``w`` as :meth:`working` gives it.

        Runs inside :meth:`serving`.
        """
        return self.gradient(w, batch)

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

    def batch(self, index: Tensor, weight: Tensor, draws: Draws | None = None) -> Batch:
        """Return the training samples ``index [..., B]`` in the form that this oracle takes."""
        return self.task.batch(index, weight, draws)

    def free_buffers(self) -> None:
        """Free buffers that can be made again; captured graphs that use them must be dropped as well."""

    def evaluate(self, w: Tensor, on: Samples | None = None) -> tuple[float, float]:
        """Return accuracy and loss of one model on the test part, or on other samples."""
        with products(self.task):
            return self.task.evaluate(w, on=on)


@contextmanager
def products(task: Task) -> Iterator[None]:
    """Make matrix products in the task's precision, on its GPU, inside this context."""
    if task.device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(task.device))  # kernels and graphs are launched on the current one
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=task.precision != "fp32"))
        if task.precision == "bf16":
            stack.enter_context(torch.autocast("cuda", torch.bfloat16))
        matmul.allow_tf32 = task.precision != "fp32"
        try:
            yield
        finally:
            matmul.allow_tf32 = before


def single_oracle(task: Task) -> Oracle:
    """Make the oracle of one client, by plain autograd."""
    model, layout = task.model, task.model.layout

    def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        parts = {n: p.detach().requires_grad_() for n, p in layout.split(w).items()}
        with torch.enable_grad():
            loss = (batch.weight * task.loss(model.forward(parts, batch.x, batch.noise), batch.y)).sum()
            grads = torch.autograd.grad(loss, list(parts.values()), materialize_grads=True)
        return layout.join(dict(zip(parts, grads, strict=True))), loss.detach()

    return Oracle(task, gradient)


def vmap_oracle(task: Task) -> Oracle:
    """Make the oracle of C clients by ``torch.func.vmap`` over any module."""
    model, layout = task.model, task.model.layout

    def loss(parts: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return (weight * task.loss(model.forward(parts, x), y)).sum()

    many = vmap(grad_and_value(loss), randomness="error")

    def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        grads, losses = many(layout.split(w), batch.x, batch.y, batch.weight)
        return layout.join(grads), losses

    return Oracle(task, gradient)


def hand_oracle(task: Task) -> Oracle:
    """Make the oracle of C clients by the model's own hand-batched forward and one backward for all.

    Raises:
        FedsmooError: if the model has no hand-batched forward.
    """
    layout, batched = task.model.layout, task.model.batched
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

    return Oracle(task, gradient)
