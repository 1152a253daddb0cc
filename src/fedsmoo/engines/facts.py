"""What methods are told of clients: their numbers, how many samples they hold, and how many of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.round import Missing
from fedsmoo.engines.task import Task

Indices = Sequence[np.ndarray] | Mapping[int, np.ndarray]  # each client's training samples
NO_CLASSES = "rnd.labels: the targets of this data set are no classes, so that clients have no counts of them"


class Facts:
    """The facts of each client, by their names in ``Round``; ``indices[i]`` are client i's training samples."""

    def __init__(self, task: Task, indices: Indices) -> None:
        self.task, self.indices = task, indices
        y = task.data.y_train
        self.y = None if y.is_floating_point() else y.cpu().numpy()

    def of(self, clients: Sequence[int]) -> dict[str, Any]:
        """Return the facts of some clients, a row each: ``client [n, 1]``, ``samples [n, 1]``, ``labels [n, K]``."""
        samples = [len(self.indices[i]) for i in clients]
        facts = {"client": self._rows([[i] for i in clients]), "samples": self._rows([[n] for n in samples])}
        if self.y is None:
            return {**facts, "labels": Missing(NO_CLASSES)}
        classes = self.task.data.classes
        counts = [np.bincount(self.y[self.indices[i]].ravel(), minlength=classes) for i in clients]
        return {**facts, "labels": self._rows(np.array(counts).reshape(len(clients), classes))}

    def of_one(self, client: int) -> dict[str, Any]:
        """Return the facts of one client: ``[1]``, and ``labels [K]``."""
        return {n: v[0] if isinstance(v, Tensor) else v for n, v in self.of([client]).items()}

    def _rows(self, values: Any) -> Tensor:
        return torch.as_tensor(values).to(self.task.device, self.task.dtype)
