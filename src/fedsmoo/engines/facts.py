"""What methods are told of clients: their numbers, how many samples they hold, of each class, and their losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core import Algorithm
from fedsmoo.core.round import NOT_ASKED, Missing
from fedsmoo.data.batches.plan import Plan
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.task import Task
from fedsmoo.kernels import available

Indices = Sequence[np.ndarray] | Mapping[int, np.ndarray]  # each client's training samples
NO_CLASSES = "rnd.labels: the targets of this data set are no classes, so that clients have no counts of them"


def keys_of(plan: Plan, device: torch.device) -> Tensor:
    """Return the keys of the noise of a plan's clients, ``[n, 2]``, on their device, where a kernel draws if it can."""
    assert plan.keys is not None
    if device.type == "cuda" and available(device)[0]:
        import fedsmoo.kernels.noise  # noqa: F401  needs Triton
    return torch.from_numpy(plan.keys.astype(np.int64)).to(device)


class Facts:
    """The facts of each client, by their names in ``Round``; ``indices[i]`` are client i's training samples."""

    def __init__(self, task: Task, indices: Indices) -> None:
        self.task, self.indices = task, indices
        y = task.data.y_train
        self.y = None if y.is_floating_point() else y.cpu().numpy()
        self.ready: tuple[Plan, dict[str, Any]] | None = None

    def ahead(self, clients: Sequence[int], plan: Plan, algorithm: Algorithm) -> None:
        """Have the facts of a round's clients ready on the device before the round, while it is busy with another.

        A method that asks for losses has to wait for the model at which they are.
        """
        if "loss" not in algorithm.asks:
            self.ready = plan, self._all(clients, plan, algorithm, None)

    def told(self, clients: Sequence[int], plan: Plan, algorithm: Algorithm, w: Tensor) -> dict[str, Any]:
        """Return all that methods are told of a round's clients, who are sent the model ``w``: facts and keys."""
        ready, self.ready = self.ready, None
        return ready[1] if ready is not None and ready[0] is plan else self._all(clients, plan, algorithm, w)

    def _all(self, clients: Sequence[int], plan: Plan, algorithm: Algorithm, w: Tensor | None) -> dict[str, Any]:
        return {**self.of(clients, algorithm, w), "key": keys_of(plan, self.task.device)}

    def of(self, clients: Sequence[int], algorithm: Algorithm, w: Tensor | None) -> dict[str, Any]:
        """Return the facts of some clients that are sent the model ``w``, a row each.

        These are ``client [n, 1]``, ``samples [n, 1]``, ``labels [n, K]`` and, if the method asks for it, ``loss``.
        """
        samples = [len(self.indices[i]) for i in clients]
        facts: dict[str, Any] = {"client": self._rows(clients), "samples": self._rows(samples)}
        facts["loss"] = Missing(NOT_ASKED)
        if "loss" in algorithm.asks:
            assert w is not None
            facts["loss"] = self._rows(self.losses(clients, w))
        if self.y is None:
            return {**facts, "labels": Missing(NO_CLASSES)}
        classes = self.task.data.classes
        held = (self.y[self.indices[i]].ravel() for i in clients)
        counts = [np.bincount(y[y >= 0], minlength=classes) for y in held]  # positions may have no label
        return {**facts, "labels": self._rows(counts, classes)}

    def of_one(self, client: int, algorithm: Algorithm, w: Tensor) -> dict[str, Any]:
        """Return the facts of one client: ``[1]``, and ``labels [K]``."""
        return {n: v[0] if isinstance(v, Tensor) else v for n, v in self.of([client], algorithm, w).items()}

    def losses(self, clients: Sequence[int], w: Tensor) -> list[float]:
        """Return each client's mean loss at the model ``w`` over its own samples, as an evaluation computes it."""
        found = []
        with products(self.task):
            for i in clients:
                on = self.task.pick(torch.from_numpy(np.asarray(self.indices[i])))
                found.append(self.task.evaluate(w, on=on).loss)
        return found

    def _rows(self, values: Sequence[Any], width: int = 1) -> Tensor:
        return torch.from_numpy(np.reshape(values, (len(values), width))).to(self.task.device, self.task.dtype)
