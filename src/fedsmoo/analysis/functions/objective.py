"""A task's loss on fixed samples, as a function of flat weights: the ground of every measurement.

``f(w) = (1/N) sum_j loss(model(w, x_j), y_j)`` over the N chosen samples, without augmentation and weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.core.random.streams import stream
from fedsmoo.data.targets import CLASSES, NO_LABEL, classes_said
from fedsmoo.engines.oracles.fused import FusedOracle, fused_reason
from fedsmoo.engines.oracles.products import products as products_in
from fedsmoo.engines.task import Task
from fedsmoo.models.loss import ignored_by

PARTS = {"train": "the training part", "test": "the test part"}


@dataclass(frozen=True)
class Objective:
    """The mean loss of a task on N samples; ``size`` of them are in memory at a time."""

    task: Task
    x: Tensor  # as stored
    y: Tensor
    part: str = ""
    size: int = 1000

    @property
    def samples(self) -> int:
        return len(self.x)

    def batches(self, channels_first: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs as the model takes them, and labels."""
        for x, y in zip(self.x.split(self.size), self.y.split(self.size), strict=True):
            yield self.task.inputs(x, channels_first=channels_first), y

    def outputs(self, w: Tensor) -> Tensor:
        """Return the model's outputs on all samples."""
        parts = self.task.model.layout.split(w)
        self.task.model.eval()
        with torch.no_grad(), products_in(self.task):
            return torch.cat([self.task.model.forward(parts, x).to(self.task.dtype) for x, _ in self.batches()])

    def evaluate(self, w: Tensor) -> tuple[float, float]:
        """Return loss and accuracy of one model."""
        out = self.outputs(w)
        loss = self.task.loss(out, self.y).double().mean()
        return loss.item(), self.accuracy(out).item()

    def accuracy(self, out: Tensor) -> Tensor:
        """Return the share of classes that outputs say right, of those that count; NaN for other targets."""
        if self.task.data.target != CLASSES:
            return torch.full((), torch.nan, dtype=torch.float64)
        there = labels_that_count(self.task, self.y)
        return ((classes_said(out) == self.y) & there).double().sum() / there.sum()

    def _right(self, out: Tensor, labels: Tensor) -> Tensor:
        """Count what each of C models says right of a batch, ``[C]``; NaN where the targets are no classes."""
        if self.task.data.target != CLASSES:
            return torch.full((len(out),), torch.nan, dtype=torch.float64, device=out.device)
        return ((classes_said(out) == labels) & labels_that_count(self.task, labels)).flatten(1).double().sum(1)

    def gradient(self, w: Tensor) -> Tensor:
        """``f'(w)``."""
        total = torch.zeros_like(w)
        for loss, parts in self._losses(w):
            grads = torch.autograd.grad(loss, list(parts.values()), materialize_grads=True)
            total += self._join(parts, grads)
        return total

    def products(self, w: Tensor, v: Tensor) -> Tensor:
        """Hessian-vector products ``f''(w) v`` for one ``v [P]`` or several ``[K, P]``, by differentiating twice.

        Several vectors share the forward and the first backward pass.
        """
        many = v if v.dim() == 2 else v[None]
        total = torch.zeros_like(many)
        for loss, parts in self._losses(w):
            names = list(parts)
            grads = torch.autograd.grad(loss, list(parts.values()), create_graph=True, materialize_grads=True)
            for k, row in enumerate(many):
                along = self.task.model.layout.split(row)
                along_row = sum(
                    ((g * along[n]).sum() for n, g in zip(names, grads, strict=True)), torch.zeros_like(loss)
                )
                if along_row.requires_grad:  # a loss that is linear in the weights has no curvature
                    last = k == len(many) - 1
                    twice = torch.autograd.grad(
                        along_row, list(parts.values()), retain_graph=not last, materialize_grads=True
                    )
                    total[k] += self._join(parts, twice)
        return total if v.dim() == 2 else total[0]

    def _losses(self, w: Tensor) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Batch by batch: its share of the mean loss, and the parameters it hangs on."""
        model = self.task.model
        for x, y in self.batches():
            model.eval()
            parts = {n: p.detach().requires_grad_() for n, p in model.layout.split(w).items()}
            # Until the next batch is asked for: gradients are taken meanwhile.
            with torch.enable_grad(), products_in(self.task), twice_differentiable(model.module), model.in_place(parts):
                yield self.task.loss(model.forward(parts, x), y).sum() / self.samples, parts

    def _join(self, parts: dict[str, Tensor], values: tuple[Tensor, ...]) -> Tensor:
        return self.task.model.layout.join(dict(zip(parts, values, strict=True))).detach()

    def evaluate_many(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses and accuracies ``[C]`` of C models ``[C, P]`` on the same samples."""
        return self.evaluator(len(w))(w)

    def evaluator(self, count: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function from ``count`` models to their losses and accuracies, evaluated as one batch of models."""
        outputs, channels_first = many_outputs(self.task, count, self.size)

        def evaluate(w: Tensor) -> tuple[Tensor, Tensor]:
            loss = torch.zeros(count, dtype=torch.float64, device=w.device)
            right = torch.zeros_like(loss)
            self.task.model.eval()
            with torch.no_grad(), products_in(self.task):
                for x, y in self.batches(channels_first):
                    out = outputs(w, x)
                    labels = y.expand(count, *y.shape)
                    each = self.task.loss(out.flatten(0, 1).to(self.task.dtype), labels.flatten(0, 1))
                    loss += each.view(count, -1).double().sum(1)
                    right += self._right(out, labels)
            return loss / self.samples, right / labels_that_count(self.task, self.y).sum()

        return evaluate


def labels_that_count(task: Task, y: Tensor) -> Tensor:
    """Return which labels count in an accuracy, as in a run's own: not -100, nor the one that the loss ignores."""
    return (y != NO_LABEL) & (y != ignored_by(task.loss))


def refuse_no_classes(task: Task, what: str) -> None:
    """Refuse to measure what is of classes where the targets are numbers or several labels."""
    if task.data.target != CLASSES:
        raise FedsmooError(f"{what} is of classes, but the targets of {task.data.name!r} are {task.data.target}")


def many_outputs(task: Task, count: int, size: int) -> tuple[Callable[[Tensor, Tensor], Tensor], bool]:
    """Return a function of C models and one batch that gives outputs ``[C, B, ...]``, and whether channels come first.

    Hand-written kernels where they serve, else the model's own batched forward, else one model after the other.
    """
    model, batched = task.model, task.model.batched
    if not fused_reason(task):
        return fused_outputs(task, count, size), False
    if batched is not None:
        return lambda w, x: batched(model.layout.split(w), x.expand(count, *x.shape)), True
    return lambda w, x: torch.stack([model.forward(model.layout.split(row), x) for row in w]), True


def fused_outputs(task: Task, count: int, size: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the kernels' logits of C models; the last batch is padded, because buffers are made for one shape."""
    oracle = FusedOracle(task)
    kernel = oracle.kernel(count, size)

    def outputs(w: Tensor, x: Tensor) -> Tensor:
        images = torch.cat([x, x.new_zeros(size - len(x), *x.shape[1:])]) if len(x) < size else x
        same = oracle.images(images.expand(count, *images.shape))
        return kernel.logits(w, same)[:, : len(x)]

    return outputs


@contextmanager
def twice_differentiable(module: nn.Module) -> Iterator[None]:
    """cuDNN's recurrent layers cannot be differentiated twice; PyTorch's own can."""
    recurrent = any(isinstance(m, nn.RNNBase) for m in module.modules())
    with torch.backends.cudnn.flags(enabled=not recurrent, allow_tf32=torch.backends.cudnn.allow_tf32):
        yield


def objective(
    task: Task, part: str = "train", samples: int | None = None, seed: int = 0, size: int = 1000
) -> Objective:
    """Return the loss on a part of the task's data, or on so many of its samples, drawn without replacement.

    Args:
        task: model, data and loss.
        part: ``train`` or ``test``.
        samples: how many; all of them if ``None`` or more than there are.
        seed: names the stream that draws the subsample.
        size: samples in memory at a time.
    """
    if part not in PARTS:
        raise unknown("part of the data", part, PARTS)
    if samples is not None and samples < 1:
        raise FedsmooError(f"samples is {samples}, but must be at least 1")
    if part == "test" and not task.data.has_test:
        raise FedsmooError(f"{task.data.name!r} has no test part to measure on: take the training part")
    x, y = (task.data.x_train, task.data.y_train) if part == "train" else (task.data.x_test, task.data.y_test)
    y = task.targets(y)
    if samples is not None and samples < len(x):
        chosen = stream(seed, "analysis samples").choice(len(x), samples, replace=False, shuffle=False)
        index = torch.from_numpy(chosen).sort().values.to(x.device)
        x, y = x[index], y[index]
    return Objective(task, x, y, part, min(size, len(x)))
