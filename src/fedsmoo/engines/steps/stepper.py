"""The contract of steppers: they take the local steps of a batch of clients and end their round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsmoo.core import Algorithm, LocalRule, Round, Vectors
from fedsmoo.data.batches.plan import Plan
from fedsmoo.engines.contract import Meanwhile
from fedsmoo.engines.devices import upload
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.steps.staging import Ring
from fedsmoo.engines.task import Batch, Task


@dataclass(frozen=True)
class Assignment:
    """What C clients train with: the method (its numbers may be ``[C, 1]``), the step rule, and what they were sent."""

    algorithm: Algorithm
    rule: LocalRule
    down: Vectors
    rnd: Round  # what is said of clients has a row for each
    runs: tuple[int, ...] = ()  # ids of the runs that the clients belong to: recorded work is reused for them only
    varies: bool = False  # whether other rounds may have other numbers of clients
    moving: frozenset[str] = frozenset()  # numbers of the method that other rounds have otherwise: "r", "inner.r"


class DevicePlan:
    """A round's plan, copied to the device once and read step by step."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self.numbers = torch.from_numpy(plan.index)  # on the host
        self.index = upload(self.numbers, task.device)
        self.steps = upload(torch.from_numpy(plan.steps).to(task.dtype)[:, None], task.device)  # of each client: [C, 1]
        self.ring: Ring | None = None
        self.draws = None
        if plan.draws is not None:
            self.draws = {n: upload(torch.from_numpy(d), task.device) for n, d in plan.draws.items()}
        count = torch.from_numpy(plan.count)[..., None]
        weight = (torch.arange(plan.index.shape[2]) < count).to(task.dtype) / count.clamp(min=1).to(task.dtype)
        self.weight = upload(weight, task.device)  # made on the host: the device is waiting
        self.running = None if (plan.count > 0).all() else upload(count > 0, task.device)  # [K, C, 1]

    @property
    def shape(self) -> tuple[Any, ...]:
        """What recorded work depends on besides the clients: the width of a batch, and which draws there are."""
        return (self.index.shape[2], None if self.draws is None else tuple(self.draws))

    def batch(self, k: int, oracle: Oracle) -> Batch:
        """Return the batch of step ``k`` in the form that an oracle takes."""
        draws = None if self.draws is None else {n: d[k] for n, d in self.draws.items()}
        if oracle.task.staged and self.ring is None:
            self.ring = Ring(oracle.task, *self.numbers.shape[1:])
            self.ring.begin(self.numbers)
        found = None if self.ring is None else self.ring.take(k)
        return oracle.batch(self.index[k], self.weight[k], draws, found)


# After the local steps: the clients' models [C, P], their vectors, and their summed minibatch losses [C].
Stepped = tuple[Tensor, Vectors, Tensor]
# After the round: the vectors that clients keep, those that they send, and ||w_i - w||^2 [C].
Ended = tuple[Vectors, Vectors, Tensor]


class Stepper(Protocol):
    """How a batch of clients trains: step by step in PyTorch, or by replay of recorded GPU work."""

    def steps(
        self, given: Assignment, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Meanwhile | None = None
    ) -> Stepped:
        """Take all local steps of a round; ``meanwhile`` is called once, with steps queued on the device.

        The results may be views of buffers, good until the next call.
        """
        ...

    def ahead(self, plan: DevicePlan) -> None:
        """Be told, by ``meanwhile``, the plan of the next round, which may be copied to where steps read it."""
        ...

    def end(self, given: Assignment, w: Tensor, me: Vectors) -> Ended:
        """End the round at the clients' last models ``w``."""
        ...
