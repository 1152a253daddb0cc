"""How many samples a model evaluates at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedsmoo.engines.looking.observed import Observed
from fedsmoo.models.modules.process import uncompiled

if TYPE_CHECKING:
    from fedsmoo.engines.task import Task

MOST = 1000
# Of the largest tensor of a pass on a CPU: what several operators read and write then stays in the cache, and the C
# library's allocator has such blocks at hand. Larger ones take up to three times as long a sample.
BYTES = 16 << 20


def evaluated_at_once(task: Task, w: Tensor) -> int:
    """Return how many samples to evaluate at once: on a CPU as many as keep every tensor small, by a rule of sizes.

    Models whose answers depend on how samples are put in batches keep the portions that they always had.
    """
    model = task.model
    mixes = model.random_in_evaluation or model.mixes_in_evaluation or model.padding == "equal"
    each = 0 if mixes or task.device.type != "cpu" else bytes_of_largest(task, w)
    return max(1, min(MOST, BYTES // each)) if each else MOST


def bytes_of_largest(task: Task, w: Tensor) -> int:
    """Return by how many bytes the largest tensor of a pass grows with each sample; 0 where nobody knows.

    Two passes, of two samples and of four, are compared operator by operator: weights do not grow.
    """
    few, more = (bytes_of_results(task, w, task.data.x_train[:n]) for n in (2, 4))
    if len(task.data.x_train) < 4 or len(few) != len(more):
        return 0
    return max((b - a for a, b in zip(few, more, strict=True)), default=0) // 2


def bytes_of_results(task: Task, w: Tensor, x: Tensor) -> list[int]:
    """Return the bytes of every tensor that operators return while stored samples are evaluated, in their order."""
    sizes = list[int]()

    def note(_: Any, __: Any, result: Any) -> None:
        found = result if isinstance(result, tuple | list) else (result,)
        sizes.extend(t.numel() * t.element_size() for t in found if isinstance(t, Tensor))

    task.model.eval()
    try:
        with torch.no_grad(), uncompiled(), Observed(note):
            task.model.forward(task.model.layout.split(w), task.inputs(x))
    except Exception:  # the user's own code: the evaluation itself says what is wrong
        return []
    return sizes
