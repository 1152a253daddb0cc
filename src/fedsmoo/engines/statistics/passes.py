"""Passes through models with running statistics, and batches of unequal length where samples see each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.gradient import Loss, Running
from fedsmoo.engines.statistics.padding import Masked
from fedsmoo.engines.task import Batch
from fedsmoo.models.base import FlatModel

# (w, batch, a method's own loss, what that is given, whether it sees features) -> gradients and values
OwnGradient = Callable[[Tensor, Batch, Loss, Sequence[Any], bool], tuple[Tensor, Tensor]]
# (w, batch, whether features are asked for) -> outputs, or a pair of outputs and features
Look = Callable[[Tensor, Batch, bool], Any]
Maybe = tuple[Tensor, ...]  # one tensor, or none


def carrying(model: FlatModel, forward: Callable[..., Any]) -> Callable[..., tuple[Any, Maybe]]:
    """Return a forward that is given statistics beside parameters, and returns what became of them beside outputs."""

    def run(parts: dict[str, Tensor], stats: Maybe, *given: Any) -> tuple[Any, Maybe]:
        if not stats or model.statistics is None:
            return forward(parts, *given), ()
        whole = {**parts, **model.statistics.split(stats[0])}
        out = forward(whole, *given)
        return out, (model.statistics.join(whole, stats[0].dtype),)

    return run


def held(model: FlatModel, parts: dict[str, Tensor], stats: Maybe) -> dict[str, Tensor]:
    """Return parameters with a copy of the statistics beside them, if there are any."""
    return {**parts, **model.statistics.split(stats[0])} if stats and model.statistics is not None else parts


def begin(batch: Batch) -> Maybe:
    """Return the statistics of models before a step's gradients; none where nobody carries them on."""
    return () if batch.running is None else (batch.running.before,)


def end(batch: Batch, after: Maybe) -> None:
    """Keep what a gradient has made of statistics."""
    if batch.running is not None and after:
        batch.running.take(after[0])


def lengths(batch: Batch) -> Tensor:
    """Return how many samples the batch of each client has: ``[C]``."""
    return (batch.weight > 0).sum(-1) if batch.real is None else batch.real


def real_rows(model: FlatModel, batch: Batch) -> Maybe:
    """Return which rows of the batches of C clients are samples, where that has to be known besides their weights."""
    if model.padding != "masked":
        return ()
    return (torch.arange(batch.weight.shape[1], device=batch.weight.device) < lengths(batch)[:, None],)


def without_padding(real: Maybe) -> AbstractContextManager[Any]:
    """Hide padding from layers that look at a whole batch."""
    return Masked(real[0]) if real else nullcontext()


def in_equal_groups(model: FlatModel, own: OwnGradient, look: Look) -> tuple[OwnGradient, Look]:
    """Return gradients and outputs of C clients, of those with as many samples at once, where nothing hides padding."""

    def grouped(w: Tensor, batch: Batch, loss: Loss, given: Sequence[Any], features: bool) -> tuple[Tensor, Tensor]:
        groups = by_length(model, batch)
        if groups is None:
            return own(w, batch, loss, given, features)
        gradients, losses = torch.zeros_like(w), w.new_zeros(len(w))
        after = None if batch.running is None else batch.running.before.clone()
        for n, rows in groups.items():
            part = cut(batch, rows, n)
            theirs = [cut_given(v, model, batch, rows, n) for v in given]
            gradients[rows], losses[rows] = own(w[rows], part, loss, theirs, features)
            if after is not None and part.running is not None:
                after[rows] = part.running.now
        end(batch, () if after is None else (after,))
        return gradients, losses

    def looked(w: Tensor, batch: Batch, features: bool) -> Any:
        groups = by_length(model, batch)
        if groups is None:
            return look(w, batch, features)
        found = [(rows, n, look(w[rows], cut(batch, rows, n), features)) for n, rows in groups.items()]

        def whole(pick: Callable[[Any], Tensor]) -> Tensor:
            like = pick(found[0][2])
            out = like.new_zeros(len(batch.weight), width(model, batch), *like.shape[2:])
            for rows, n, part in found:
                out[rows, :n] = pick(part)
            return out

        return (whole(lambda o: o[0]), whole(lambda o: o[1])) if features else whole(lambda o: o)

    return grouped, looked


def by_length(model: FlatModel, batch: Batch) -> dict[int, Tensor] | None:
    """Return the rows of clients by the length of their batches, but of those that have finished; ``None``: all go."""
    if model.padding != "equal":
        return None
    each = lengths(batch)
    if bool((each == batch.weight.shape[1]).all()):
        return None
    return {n: (each == n).nonzero()[:, 0] for n in each.unique().tolist() if n}


def cut(batch: Batch, rows: Tensor, n: int) -> Batch:
    """Return the batches of some clients, which have ``n`` samples each; models that draw go one by one."""
    running = None if batch.running is None else Running(batch.running.before[rows])
    return Batch(batch.x[rows, :n], batch.y[rows, :n], batch.weight[rows, :n], running=running)


def cut_given(v: Any, model: FlatModel, batch: Batch, rows: Tensor, n: int) -> Any:
    """Return what a loss is given of some clients: outputs have a row for each sample."""
    if not isinstance(v, Tensor) or v.dim() == 0:
        return v
    return v[rows, :n] if v.dim() > 2 and v.shape[1] == width(model, batch) else v[rows]


def width(model: FlatModel, batch: Batch) -> int:
    """Return how many rows outputs have where batches differ in length: a number that is hardly any other.

    So what a loss is given shows whether it has rows of samples, or of ten classes in batches of ten. It is the next
    prime that is no length of the model's.
    """
    longer = itertools.count(batch.weight.shape[1] + 1)
    return next(n for n in longer if n not in model.lengths and all(n % k for k in range(2, n)))
