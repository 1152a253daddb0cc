"""The oracle of hand-written kernels: ResNet-18-GN for many clients on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsmoo.engines.oracles.opaque import OpaqueOracle
from fedsmoo.engines.steps.capture import captured, warn_slower
from fedsmoo.engines.task import Batch, Draws, Samples, Task
from fedsmoo.kernels import available
from fedsmoo.kernels.gradients import GradientBuffers
from fedsmoo.kernels.resnet18.shapes import MOST_CLASSES, fine_offset, stored_images
from fedsmoo.kernels.runtime import PRECISIONS, keep_cache_in_one_place
from fedsmoo.metrics.tally import Scores, Tally
from fedsmoo.models.live import LiveResNet
from fedsmoo.models.loss import cross_entropy

EVALUATED_AT_ONCE = 2500
Memory = tuple[tuple[Any, ...], ...]


def fused_reason(task: Task) -> str:
    """Return why the kernels cannot serve this task; empty if they can."""
    if not isinstance(task.model, LiveResNet):
        return "the model has none"
    if task.data.classes > MOST_CLASSES:
        return f"they know at most {MOST_CLASSES} classes"
    if task.loss is not cross_entropy:
        return "they know cross-entropy only"
    if str(task.dtype) != "torch.float32":
        return f"they keep vectors in float32, not {task.dtype}"
    return available(task.device)[1]


def memory_of(on: Samples) -> Memory:
    """Return which memory a graph of an evaluation on samples reads: a part of them may begin at the same address."""
    return tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in on)


class CapturedEvaluation(NamedTuple):
    """A captured evaluation on samples: copy a model into ``w``, call ``replay``, read ``result``."""

    on: Samples
    w: Tensor
    result: Tally
    replay: Callable[[], None]


class FusedOracle(OpaqueOracle):
    """Gradients by Triton kernels with a client axis; one set of buffers per shape of cohort."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, PRECISIONS[task.precision][0], fine_offset(task.model.layout))
        from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient, Weights

        keep_cache_in_one_place()
        self.kernel_class, self.weights_class = ResNet18Gradient, Weights
        self.by_shape: dict[tuple[int, int], ResNet18Gradient] = {}
        self.evaluations: dict[Memory, CapturedEvaluation] = {}  # by their samples, which they keep alive

    def kernel(self, clients: int, batch: int):
        """Return the kernels for a shape, made (and compiled) at its first use."""
        if (clients, batch) not in self.by_shape:
            task = self.task
            made = self.kernel_class(clients, batch, task.data.classes, task.device, task.precision)
            made.compile_ahead()
            self.by_shape[clients, batch] = made
        return self.by_shape[clients, batch]

    def batch(self, index: Tensor, weight: Tensor, draws: Draws | None = None, found: Samples | None = None) -> Batch:
        batch = self.task.batch(index, weight, draws, channels_first=False, found=found)
        return Batch(self.images(batch.x), batch.y, batch.weight)

    def images(self, x: Tensor) -> Tensor:
        """Return images ``[..., 3]`` as the kernels read them."""
        return stored_images(x, self.dtype)

    def launch(self, working: Tensor, fine: Tensor, batch: Batch, into: GradientBuffers) -> None:
        self.kernel(*batch.weight.shape)(self.weights_class(working, fine), batch.x, batch.y, batch.weight, into)

    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        on = on or self.task.test
        kept = any(m.whole is not None for m in self.task.metrics)
        if self.task.device.type != "cuda" or kept or on.x.device.type != "cuda":  # "cuda" is not equal to "cuda:0"
            return self.tally(w, on).scores(on.y)  # outputs that are kept go to the host, or samples come from there
        with torch.cuda.device(self.task.device):
            key = memory_of(on)
            evaluation = self.evaluations.get(key)
            if evaluation is None:
                evaluation = self.evaluations[key] = self.capture(on)
            evaluation.w.copy_(w)
            evaluation.replay()
            return evaluation.result.scores(on.y)

    def free_buffers(self) -> None:
        self.by_shape.clear()
        self.evaluations.clear()  # their graphs use the kernels' buffers

    def tally(self, w: Tensor, on: Samples) -> Tally:
        """Return the sums of losses and metrics of one model on samples."""

        def answers(x: Tensor) -> Tensor:
            images = self.task.inputs(x, channels_first=False)
            return self.kernel(1, len(x)).logits(w[None], self.images(images[None]))[0]

        return self.task.tally(map(answers, on.x.split(EVALUATED_AT_ONCE)), EVALUATED_AT_ONCE, on)

    def capture(self, on: Samples) -> CapturedEvaluation:
        """Capture an evaluation as one graph: about 150 launches, most of them shorter than the host's call."""
        device = self.task.device
        w = torch.zeros(self.task.model.layout.size, dtype=self.task.dtype, device=device)
        result = self.tally(w, on)  # which says how many sums there are

        def work() -> None:
            result.sums.copy_(self.tally(w, on).sums)

        try:
            return CapturedEvaluation(on, w, result, captured(work, torch.cuda.Stream(device), w.zero_))
        except RuntimeError as e:  # memory that ran out is one too
            warn_slower("the evaluation cannot be captured", e, self.slower)
            return CapturedEvaluation(on, w, result, work)
