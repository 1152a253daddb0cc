"""How well clients are served by models of their own: the leading metric on samples that they hold out or test on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedsmoo.core import Algorithm, Vectors
from fedsmoo.data.targets import CLASSES, NO_LABEL, classes_said
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.oracles.layers import forward_of_many
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.task import Samples, Task
from fedsmoo.metrics.tally import Scores

SAMPLES = 4000  # in memory at a time, of all clients that are evaluated at once


@dataclass(frozen=True)
class PersonalInputs:
    """What personal models are evaluated with: the method, its server's model, what it sends, and who is asked on what.

    ``parts`` are indices of samples that nobody trains on, by client; each client was met before. They are of the
    training ``part``, held out, or test samples of the clients' own.
    """

    algorithm: Algorithm
    w: Tensor
    down: Vectors
    parts: Mapping[int, np.ndarray]
    statistics: Tensor | None = None  # of the server's model
    part: str = "train"  # or "test"

    def of(self, clients: list[int]) -> PersonalInputs:
        """Return the same for some of the clients."""
        return replace(self, parts={i: self.parts[i] for i in clients})

    def take(self, task: Task, index: Tensor) -> Samples:
        """Return samples of the part by their numbers."""
        found = task.pick(index, test=self.part == "test")
        return Samples(found.x, found.y.to(task.device))


def one_by_one(
    task: Task, evaluate: Callable[[Tensor, Samples], Scores], table: ClientTable, inputs: PersonalInputs
) -> Tensor:
    """Return each client's leading metric with its personal model and the global one, ``[n, 2]``, client by client.

    It is NaN where a metric has no value, as the AUC of samples of one class.
    """
    out = []
    for client, samples in inputs.parts.items():
        on = inputs.take(task, torch.from_numpy(samples))
        me = table.peek([client]).map(lambda v: v[0])
        mine = inputs.algorithm.personal(inputs.down, me)
        if inputs.statistics is not None:
            task.model.hold(statistics_of(me, inputs.statistics))
        own = evaluate(inputs.w if mine is None else mine, on).lead
        if inputs.statistics is not None:
            task.model.hold(inputs.statistics)
        both = own, evaluate(inputs.w, on).lead
        out.append([math.nan if value is None else value for value in both])
    return torch.tensor(out, dtype=torch.float64).view(-1, 2)


def statistics_of(me: Vectors, shared: Tensor) -> Tensor:
    """Return the running statistics of clients' own models: those that they keep, or the server's."""
    return getattr(me, "statistics") if "statistics" in me.names() else shared  # noqa: B009  a vector's name


def several_at_once(task: Task, table: ClientTable, inputs: PersonalInputs, most: int) -> Tensor:
    """Return what :func:`one_by_one` does, at most so many clients at a time as one batch of models."""
    model, split = task.model, task.model.layout.split
    model.eval()
    many = model.batched or vmap(forward_of_many(model, evaluates=True))
    out = [torch.zeros(0, 2, dtype=torch.float64)]
    with torch.no_grad(), products(task):
        for group in groups(inputs.parts, most):
            me = table.peek(group)
            mine = inputs.algorithm.personal(inputs.down, me)
            own = split((inputs.w if mine is None else mine).expand(len(group), -1))
            if model.statistics is not None and inputs.statistics is not None:
                theirs = statistics_of(me, inputs.statistics).expand(len(group), -1)
                own |= model.statistics.split(theirs)
            shared = split(inputs.w)
            held = [inputs.parts[i] for i in group]
            served = Group(task, inputs, held)
            for index, real in pieces(held, SAMPLES // len(group)):
                block = inputs.take(task, index)
                x = task.inputs(block.x)
                answers = many(own, x), model.forward(shared, x.flatten(0, 1)).unflatten(0, x.shape[:2])
                served.add(answers, block.y, real)
            out.append(served.values())
    return torch.cat(out)


class Group:
    """Adds up the leading metric of several clients, each by its own model and by the global one."""

    def __init__(self, task: Task, inputs: PersonalInputs, held: list[np.ndarray]) -> None:
        lead = task.metrics[:1]
        self.task, self.inputs, self.held = task, inputs, held
        self.each = [[task.tallying(lead, len(samples)) for _ in range(2)] for samples in held]
        self.right = torch.zeros(len(held), 2, dtype=torch.float64, device=task.device)
        self.total = torch.zeros(len(held), dtype=torch.float64, device=task.device)
        self.ignores = lead[0].ignores
        self.at_once = lead[0].name == "accuracy" and task.data.target == CLASSES

    def add(self, answers: tuple[Tensor, Tensor], y: Tensor, real: Tensor) -> None:
        """Add a block of samples ``[C, B]``: outputs of both models, targets, and which samples are real."""
        if self.at_once:  # as nearly always: without a loop over clients
            counted = real.to(y.device).view(*real.shape, *[1] * (y.dim() - 2)).expand_as(y)
            counted = counted & (y != NO_LABEL) & (y != self.ignores)
            good = [((classes_said(a) == y) & counted).flatten(1).sum(1) for a in answers]
            self.right += torch.stack(good, 1)
            self.total += counted.flatten(1).sum(1)
            return
        for c, tallying in enumerate(self.each):
            n = int(real[c].sum())  # the real ones come first
            for adding, out in zip(tallying, answers, strict=True):
                if n:
                    adding.add(out[c, :n], y[c, :n])

    def values(self) -> Tensor:
        """Return the metric of each client and model, ``[C, 2]``."""
        if self.at_once:
            return (self.right / self.total[:, None]).cpu()
        found = []
        for tallying, samples in zip(self.each, self.held, strict=True):
            y = self.inputs.take(self.task, torch.from_numpy(samples)).y
            leads = [adding.tally().scores(y).lead for adding in tallying]
            found.append([math.nan if value is None else value for value in leads])
        return torch.tensor(found, dtype=torch.float64)


def groups(parts: Mapping[int, np.ndarray], most: int) -> Iterator[list[int]]:
    """Divide clients into groups that fit in memory, by the numbers of their samples alone."""
    group: list[int] = []
    for client in parts:
        largest = max(len(parts[i]) for i in (*group, client))
        if group and (len(group) == most or (len(group) + 1) * largest > SAMPLES):
            yield group
            group = []
        group.append(client)
    if group:
        yield group


def pieces(parts: list[np.ndarray], width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut the samples of clients into blocks ``[C, B]``, with which of them are real: the others are repetitions."""
    longest = max(map(len, parts))
    index = np.stack([np.resize(p, longest) for p in parts])
    real = np.arange(longest) < np.array([[len(p)] for p in parts])
    for start in range(0, longest, max(1, width)):
        cut = np.s_[:, start : start + max(1, width)]
        yield torch.from_numpy(index[cut]), torch.from_numpy(real[cut])
