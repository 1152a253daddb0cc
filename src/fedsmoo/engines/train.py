"""One round of local training of the clients of one run, or of several runs, in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, methodcaller
from typing import NamedTuple

import torch
from torch import Tensor

from fedsmoo.core import Round, Vectors
from fedsmoo.data.batches.plan import merge
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Contribution, Meanwhile, RoundInputs, Setup
from fedsmoo.engines.devices import upload
from fedsmoo.engines.steps.moving import moving_numbers
from fedsmoo.engines.steps.stack import per_client, stack
from fedsmoo.engines.steps.stepper import Assignment, DevicePlan, Stepper


@dataclass(frozen=True)
class RunSlice:
    """The clients of one run that train now: ``part`` of its cohort."""

    setup: Setup
    table: ClientTable
    inputs: RoundInputs
    part: slice

    @property
    def clients(self) -> list[int]:
        return self.inputs.clients[self.part]

    def own(self) -> Vectors:
        """Read the clients' own vectors ``[C, P]``."""
        return self.table.read(self.clients, self.inputs.algorithm.first_contact(self.inputs.down))


class SliceResult(NamedTuple):
    """What a slice's clients keep, and what they add to the round."""

    me: Vectors
    sent: Contribution


def train(
    runs: Sequence[RunSlice], stepper: Stepper, meanwhile: Meanwhile | None = None, plan: DevicePlan | None = None
) -> list[SliceResult]:
    """Train the clients of all slices in one batch; their ``plan`` may lie ready on the device."""
    task, counts = runs[0].setup.task, [len(r.clients) for r in runs]
    plan = plan or DevicePlan(merge([r.inputs.plan.select(r.part) for r in runs]), task)
    given = assignment(runs, counts, plan.steps)
    own = concatenate([r.own() for r in runs])
    clients, size, zero = sum(counts), task.model.layout.size, torch.zeros((), dtype=task.dtype, device=task.device)
    me = own.replace(**{n: zero.expand(clients, given.algorithm.length(n, size)) for n in given.algorithm.local})
    w = given.algorithm.start(given.down, me).expand(clients, size)
    w, me, total = stepper.steps(given, w, me, plan, meanwhile)
    me, up, drift = stepper.end(given, w, me)
    loss = total / given.rnd.steps[:, 0]
    out, start = [], 0
    for run, n in zip(runs, counts, strict=True):
        rows = slice(start, start + n)
        weights = upload(torch.tensor(run.inputs.weights[run.part], dtype=w.dtype), w.device)
        a = run.setup.algorithm
        sent = up.pick(a.summed).map(itemgetter(rows)).map(partial(torch.matmul, weights))
        moved, each = w[rows].sum(0) - n * run.inputs.down.w, up.pick(a.rows).map(itemgetter(rows))
        part = Contribution(sent, loss[rows].sum(), drift[rows].sum(), moved, each)
        out.append(SliceResult(me.map(itemgetter(rows)), part))
        start += n
    return out


def assignment(runs: Sequence[RunSlice], counts: Sequence[int], steps: Tensor) -> Assignment:
    """Return what the clients train with: of several runs, numbers and sent vectors are repeated for each client."""
    rnd = round_of(runs, counts, steps)
    moving = frozenset[str]().union(*(moving_numbers(r.inputs.algorithm, r.setup.algorithm) for r in runs))
    if len(runs) == 1:
        setup, inputs = runs[0].setup, runs[0].inputs
        varies = inputs.varies or counts[0] < len(inputs.clients)  # chunks may end in a shorter one
        return Assignment(inputs.algorithm, setup.rule, inputs.down, rnd, (id(setup),), varies, moving)
    like = runs[0].inputs.down.w
    rows = [r.inputs.down.map(methodcaller("expand", n, -1)) for r, n in zip(runs, counts, strict=True)]
    algorithm = stack([r.inputs.algorithm for r in runs], counts, like)
    rule = stack([r.setup.rule for r in runs], counts, like)
    return Assignment(algorithm, rule, concatenate(rows), rnd, tuple(id(r.setup) for r in runs), moving=moving)


def round_of(runs: Sequence[RunSlice], counts: Sequence[int], steps: Tensor) -> Round:
    """Return what the clients are told of their round; of several runs, a number for each client."""
    first, like = runs[0].inputs, runs[0].inputs.down.w
    each = [r.inputs.facts_of(r.part) for r in runs]
    if len(runs) == 1:
        return Round(first.number, first.lr, steps, first.share, **each[0])
    facts = {n: torch.cat([f[n] for f in each]) if isinstance(v, Tensor) else v for n, v in each[0].items()}
    lr, share = (per_client([getattr(r.inputs, n) for r in runs], counts, like) for n in ("lr", "share"))
    numbers = [r.inputs.number for r in runs]  # resumed runs may be at different rounds
    number = numbers[0] if len(set(numbers)) == 1 else per_client(numbers, counts, like)
    return Round(number, lr, steps, share, **facts)


def concatenate(parts: Sequence[Vectors]) -> Vectors:
    """Stack the rows of several runs' vectors."""
    if len(parts) == 1:
        return parts[0]
    return Vectors(**{n: torch.cat([getattr(p, n) for p in parts]) for n in parts[0].names()})
