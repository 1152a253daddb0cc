"""Gradient oracles: the only things that know a model. ``oracle(w, batch) -> (gradients, losses)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap

from fedsmoo.core import FedsmooError
from fedsmoo.engines.task import Batch, Draws, Samples, Task
from fedsmoo.kernels.gradients import GradientBuffers


class Oracle:
    """Gradients and losses at flat weights; of one client (``w [P]``) or of C at once (``w [C, P]``)."""

    def __init__(self, task: Task, function: Callable[[Tensor, Batch], tuple[Tensor, Tensor]]) -> None:
        self.task, self.function = task, function

    def __call__(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        with products(self.task):
            return self.gradient(w, batch)

    def gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients and losses, in whatever precision of products is in force."""
        return self.function(w, batch)

    def batch(self, index: Tensor, weight: Tensor, draws: Draws | None = None) -> Batch:
        """The training samples ``index [..., B]`` in the form that this oracle takes."""
        return self.task.batch(index, weight, draws)

    def forget(self) -> None:
        """Let go of buffers that can be made again; whoever captured a use of them must let go of that as well."""

    def evaluate(self, w: Tensor, on: Samples | None = None) -> tuple[float, float]:
        """Accuracy and loss of one model on the test part, or on other samples."""
        with products(self.task):
            return self.task.evaluate(w, on=on)


class OpaqueOracle(Oracle, ABC):
    """An oracle that a compiler cannot look into. It reads weights in the type that products are made in, ``dtype``,
    but those from ``begin`` on as they are."""

    def __init__(self, task: Task, dtype: torch.dtype, begin: int) -> None:
        self.task, self.dtype, self.begin = task, dtype, begin

    def gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.taken(self.working(w), self.fine(w), batch)

    def taken(self, working: Tensor, fine: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients in full, and losses, at weights given in the oracle's two forms."""
        into = self._whole(fine.new_zeros(working.shape))
        self.launch(working, fine, batch, into)
        return into.coarse, into.loss

    def twin(self) -> OpaqueOracle:
        """Another one for the same task: the two share no buffers and may run at the same time."""
        return type(self)(self.task)  # type: ignore[call-arg]

    def working(self, w: Tensor) -> Tensor:
        """Weights ``[C, P]`` in the type that products are made in; ``w`` itself where that is its own."""
        return w.to(self.dtype)

    def fine(self, w: Tensor) -> Tensor:
        """A copy of the few weights that are read as they are."""
        return w[:, self.begin :].contiguous()

    def buffers(self, w: Tensor) -> GradientBuffers:
        """Room, zeros, for gradients at ``w`` in the type of products, and in full from ``begin`` on."""
        if w.dtype == self.dtype:
            return self._whole(torch.zeros_like(w))
        return GradientBuffers(
            torch.zeros_like(w, dtype=self.dtype), torch.zeros_like(self.fine(w)), w.new_zeros(len(w))
        )

    def _whole(self, gradients: Tensor) -> GradientBuffers:
        return GradientBuffers(gradients, gradients[:, self.begin :], gradients.new_empty(len(gradients)))

    @abstractmethod
    def launch(self, working: Tensor, fine: Tensor, batch: Batch, into: GradientBuffers) -> None:
        """Write gradients and losses at weights given in these two forms."""


@contextmanager
def products(task: Task) -> Iterator[None]:
    """Matrix products in the task's precision on its GPU, for as long as this lasts."""
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
    """One client, by plain autograd."""
    model, layout = task.model, task.model.layout

    def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        parts = {n: p.detach().requires_grad_() for n, p in layout.split(w).items()}
        with torch.enable_grad():
            loss = (batch.weight * task.loss(model.forward(parts, batch.x, batch.noise), batch.y)).sum()
            grads = torch.autograd.grad(loss, list(parts.values()), materialize_grads=True)
        return layout.join(dict(zip(parts, grads, strict=True))), loss.detach()

    return Oracle(task, gradient)


def vmap_oracle(task: Task) -> Oracle:
    """C clients, by ``torch.func.vmap`` over any module."""
    model, layout = task.model, task.model.layout

    def loss(parts: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return (weight * task.loss(model.forward(parts, x), y)).sum()

    many = vmap(grad_and_value(loss), randomness="error")

    def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        grads, losses = many(layout.split(w), batch.x, batch.y, batch.weight)
        return layout.join(grads), losses

    return Oracle(task, gradient)


def hand_oracle(task: Task) -> Oracle:
    """C clients, by the model's own hand-batched forward and one backward for all."""
    layout, batched = task.model.layout, task.model.batched
    if batched is None:
        raise FedsmooError(f"the model {type(task.model.module).__name__} has no hand-batched forward: use engine=vmap")

    def loss(parts: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        out = batched(parts, batch.x).flatten(0, 1)
        each = task.loss(out, batch.y.flatten(0, 1)).view(batch.weight.shape)
        losses = (batch.weight * each).sum(1)
        return losses.sum(), losses

    slopes = grad(loss, has_aux=True)

    def gradient(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        grads, losses = slopes(layout.split(w), batch)
        return layout.join(grads), losses

    return Oracle(task, gradient)
