"""The engine that trains one client after the other: the readable reference that all others are tested against."""

from __future__ import annotations

import dataclasses
from functools import partial
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from fedsmoo.core import Round, Vectors
from fedsmoo.core.gradient import Running, StepGradient
from fedsmoo.core.local import local_end, local_step
from fedsmoo.core.random.noise import Noise
from fedsmoo.data.batches.plan import Plan
from fedsmoo.engines.client_state.memory import keep_pages, place_of_rows
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Contribution, Engine, Meanwhile, RoundInputs, RoundOutcome, Setup, Sums
from fedsmoo.engines.late_draws import generator_state, refuse_late_draws
from fedsmoo.engines.oracles.cpu.library import LIBRARY, Way
from fedsmoo.engines.oracles.on_batch import OnBatch, carried
from fedsmoo.engines.oracles.oracle import Oracle, single_oracle
from fedsmoo.engines.personal import PersonalInputs, one_by_one
from fedsmoo.engines.task import Batch, Samples, Task
from fedsmoo.metrics.tally import Scores

GRAIN = 32768  # numbers: PyTorch adds up fewer in one thread


class Trained(NamedTuple):
    """A client's last model, its new own vectors, what it sends, and its mean minibatch loss."""

    w: Tensor
    me: Vectors
    up: Vectors
    loss: Tensor


class Serial(Engine):
    """The reference engine: plain PyTorch, client by client, step by step."""

    name = "serial"

    def __init__(self, setup: Setup, table: ClientTable | None = None, why: str = "") -> None:
        self.setup, self.chosen = setup, why
        self.table = table or ClientTable(setup.algorithm.own)
        self.oracle = single_oracle(setup.task)
        self.way = Way()

    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        with LIBRARY.taken(self.way):
            return self.oracle.evaluate(w, on)

    def personal(self, inputs: PersonalInputs) -> Tensor:
        return one_by_one(self.setup.task, self.evaluate, self.table, inputs)

    def run_round(self, inputs: RoundInputs, meanwhile: Meanwhile | None = None) -> RoundOutcome:
        sums = self.sums(inputs)
        keep_pages(self.setup.task.device)
        with LIBRARY.taken(self.way):
            for c in range(len(inputs.clients)):
                trained = train_client_of(self.setup, inputs, c, self.own(inputs, c), self.oracle)
                self.keep(inputs, c, trained.me)
                sums.add(contribution(inputs, c, trained))
        return sums.outcome()

    def sums(self, inputs: RoundInputs) -> Sums:
        """Return the sums of a round, empty."""
        return Sums(len(inputs.clients), place=place_of_rows(self.setup, len(inputs.clients)))

    def own(self, inputs: RoundInputs, c: int) -> Vectors:
        """Return the vectors of a client of the cohort, by its position."""
        first = inputs.algorithm.first_contact(inputs.down)
        return self.table.read([inputs.clients[c]], first).map(lambda v: v[0])

    def keep(self, inputs: RoundInputs, c: int, me: Vectors) -> None:
        """Keep a client's own vectors."""
        self.table.write([inputs.clients[c]], me.map(lambda v: v[None]))


def contribution(inputs: RoundInputs, c: int, trained: Trained, threads: int = 0) -> Contribution:
    """Return what a client adds to a round; sums have the bits of so many threads (0: of those there are)."""
    algorithm, moved = inputs.algorithm, trained.w - inputs.down.w
    mine, rows = trained.up.pick(algorithm.summed), trained.up.pick(algorithm.rows).map(lambda v: v[None])
    drift = moved.square().sum() if threads == 0 else sum_of_threads(moved.square(), threads)
    return Contribution(mine.map(partial(mul, inputs.weights[c])), trained.loss, drift, moved, rows)


def sum_of_threads(v: Tensor, threads: int) -> Tensor:
    """Return the sum of a vector as so many threads of PyTorch add it up, a part each, to the bit, in one thread."""
    parts = min(threads, -(-len(v) // GRAIN))
    if threads == 1 or len(v) < GRAIN:
        return v.sum()
    return torch.stack([part.sum() for part in v.split(-(-len(v) // parts))]).sum()


def train_client_of(setup: Setup, inputs: RoundInputs, c: int, own: Vectors, oracle: Oracle) -> Trained:
    """Train a client of a round's cohort, by its position, from its own vectors."""
    setup = dataclasses.replace(setup, algorithm=inputs.algorithm)
    return train_client(setup, inputs.down, own, inputs.plan.select(slice(c, c + 1)), inputs.round_of(c), oracle)


def train_client(
    setup: Setup, down: Vectors, own: Vectors, plan: Plan, rnd: Round, oracle: Oracle | None = None
) -> Trained:
    """Train one client for a round, with the gradients of an oracle of one client (default: :func:`single_oracle`).

    Raises:
        FedsmooError: if the model draws random numbers in some steps only.
    """
    task = setup.task
    oracle, before = oracle or single_oracle(task), generator_state(task.device)
    trained = local_round(setup, oracle, down, own, plan, rnd)
    refuse_late_draws(task, before, lambda other: local_round(setup, other, down, own, plan, rnd), oracle)
    return trained


def local_round(setup: Setup, oracle: Oracle, down: Vectors, own: Vectors, plan: Plan, rnd: Round) -> Trained:
    """Take the local steps of a client with an oracle's gradients, and end its round."""
    algorithm, task = setup.algorithm, setup.task
    task.model.train()
    me = own.replace(**{n: algorithm.zeros(n, down.w) for n in algorithm.local})
    w = algorithm.start(down, me)
    total = torch.zeros((), dtype=task.dtype, device=task.device)
    steps = torch.arange(len(plan.index), dtype=task.dtype, device=task.device).split(1)
    for k in range(len(plan.index)):
        batch = client_batch(task, plan, k)
        model = OnBatch(oracle, batch, algorithm.features)

        def take(v: Tensor, running: Running | None = None, batch: Batch = batch) -> tuple[Tensor, Tensor]:
            return oracle(v, carried(batch, running))

        grad = StepGradient(take, rnd.at_step(steps[k]), model)
        w, me = local_step(algorithm, setup.rule, w, grad, down, me)
        total = total + grad.first_loss
    me, up = local_end(algorithm, w, down, me, rnd)
    return Trained(w, me, up, total / max(len(plan.index), 1))


def client_batch(task: Task, plan: Plan, k: int) -> Batch:
    """Return the k-th batch of a plan of one client, cut to its real samples."""
    n = int(plan.count[k, 0])
    index = torch.from_numpy(plan.index[k, 0, :n]).to(task.device)
    draws = None
    if plan.draws is not None:
        draws = {name: torch.from_numpy(d[k, 0, :n]).to(task.device) for name, d in plan.draws.items()}
    batch = task.batch(index, torch.full((n,), 1 / n, dtype=task.dtype, device=task.device), draws)
    if not task.model.random:
        return batch
    assert plan.keys is not None
    low, high = plan.keys[0].tolist()
    return dataclasses.replace(batch, noise=Noise((low, high), k))
