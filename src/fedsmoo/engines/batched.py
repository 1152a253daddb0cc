"""All clients of a cohort at once: one batch of models."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Round, Vectors
from fedsmoo.core.local import local_step
from fedsmoo.data.plan import Plan
from fedsmoo.engines.base import Outcome, Setup, Sums, Work
from fedsmoo.engines.memory import clients_that_fit
from fedsmoo.engines.oracles import Oracle, hand_oracle, vmap_oracle
from fedsmoo.engines.table import ClientTable
from fedsmoo.engines.task import Batch, Task


class Batched:
    """The engine for one machine: C models as ``[C, P]``, C gradients from one call of the oracle.

    ``chunk`` bounds how many clients run at once (default: what fits in memory); the result is the same.
    """

    def __init__(
        self, setup: Setup, table: ClientTable | None = None, oracle: str = "auto", chunk: int | None = None
    ) -> None:
        self.setup = setup
        self.table = table or ClientTable(setup.algorithm.own)
        by_hand = setup.task.model.batched is not None if oracle == "auto" else oracle == "hand"
        self.name = "batched" if by_hand else "vmap"
        self.oracle: Oracle = (hand_oracle if by_hand else vmap_oracle)(setup.task)
        self.chunk = chunk

    def run_round(self, work: Work) -> Outcome:
        chunk = self.chunk or clients_that_fit(self.setup)
        while True:
            try:
                return self._run(work, min(chunk, len(work.clients)))
            except torch.OutOfMemoryError as e:
                if min(chunk, len(work.clients)) == 1:
                    raise FedsmooError(
                        f"not even one client fits in the memory of {self.setup.task.device}: "
                        "use a smaller batch_size or model, or engine=serial on the CPU"
                    ) from e
                chunk = (min(chunk, len(work.clients)) + 1) // 2  # nothing is written before all chunks are done
                self.chunk = chunk
                torch.cuda.empty_cache()

    def _run(self, work: Work, chunk: int) -> Outcome:
        sums, done = Sums(), []
        for start in range(0, len(work.clients), chunk):
            part = slice(start, start + chunk)
            me, up, loss, drift = self._train(work, part)
            weights = torch.tensor(work.weights[part], dtype=up.w.dtype, device=up.w.device)
            sums.add(up.map(lambda v, weights=weights: weights @ v), loss.sum(), drift.sum())
            done.append((work.clients[part], me))
        for clients, me in done:
            self.table.write(clients, me)
        return sums.outcome(len(work.clients))

    def _train(self, work: Work, part: slice) -> tuple[Vectors, Vectors, Tensor, Tensor]:
        """The round of some of the clients: new own vectors, what they send, their losses and drifts."""
        algorithm, task = self.setup.algorithm, self.setup.task
        plan, clients, down = work.plan.select(part), work.clients[part], work.down
        device_plan = DevicePlan(plan, task)
        own = self.table.read(clients, algorithm.first_contact(down))
        zero = torch.zeros(len(clients), down.w.shape[-1], dtype=down.w.dtype, device=down.w.device)
        me = own.replace(**dict.fromkeys(algorithm.local, zero))
        w = algorithm.start(down, me).expand_as(zero)
        total = torch.zeros(len(clients), dtype=task.dtype, device=task.device)
        for k in range(len(plan.index)):
            batch = device_plan.batch(k)
            losses: list[Tensor] = []

            def grad(v: Tensor, batch: Batch = batch, losses: list[Tensor] = losses) -> Tensor:
                g, loss = self.oracle(v, batch)
                losses.append(loss)
                return g

            new_w, new_me = local_step(algorithm, self.setup.rule, w, grad, down, me, work.lr)
            active = device_plan.active(k)
            if active is None:
                w, me = new_w, new_me
            else:  # clients that have finished stay where they are
                w = torch.where(active, new_w, w)
                me = Vectors(**{n: torch.where(active, v, getattr(me, n)) for n, v in new_me.items()})
            total = total + losses[0]  # the loss of a client that has finished is an empty sum: zero
        steps = torch.from_numpy(plan.steps).to(task.device, task.dtype)[:, None]
        me, up = algorithm.finish(w, down, me, Round(work.number, work.lr, steps, work.share))
        drift = (w - down.w).square().sum(-1)
        return me.pick(algorithm.own), up.pick(algorithm.up), total / steps[:, 0], drift


class DevicePlan:
    """A plan copied to the device once, read step by step."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self.task = task
        self.index = torch.from_numpy(plan.index).to(task.device)
        count = torch.from_numpy(plan.count).to(task.device)[..., None]
        self.draws = None
        if plan.draws is not None:
            self.draws = {n: torch.from_numpy(d).to(task.device) for n, d in plan.draws.items()}
        real = torch.arange(plan.index.shape[2], device=task.device) < count
        self.weight = real.to(task.dtype) / count.clamp(min=1).to(task.dtype)
        self.running = None if (plan.count > 0).all() else count > 0

    def batch(self, k: int) -> Batch:
        draws = None if self.draws is None else {n: d[k] for n, d in self.draws.items()}
        return self.task.batch(self.index[k], self.weight[k], draws)

    def active(self, k: int) -> Tensor | None:
        """``[C, 1]``: which clients still train at step k; ``None`` if all of them do at every step."""
        return None if self.running is None else self.running[k]
