"""The server's half of a round, written once for simulated clients and for those of a real federation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.layout import NONE, Masks
from fedsmoo.core.local import local_end
from fedsmoo.core.random.noise import key_of
from fedsmoo.core.round import Round
from fedsmoo.core.vectors import Vectors

AT_ONCE = 2**28  # numbers of rows that a rule works on at a time: a gigabyte


class ServerSettings(Protocol):
    """The settings of a run that its server needs, round after round."""

    @property
    def rounds(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def lr_decay(self) -> float: ...
    @property
    def weighted(self) -> bool: ...
    @property
    def eval_every(self) -> int: ...
    @property
    def seed(self) -> int: ...


def lr_of(settings: ServerSettings, number: int) -> float:
    """Return the local learning rate of a round, counted from 0."""
    return settings.lr * settings.lr_decay**number


def is_evaluated(settings: ServerSettings, number: int) -> bool:
    """Whether the model is evaluated after a round, counted from 0: every so many rounds, and after the last one."""
    return (number + 1) % settings.eval_every == 0 or number + 1 >= settings.rounds


def weights_of(settings: ServerSettings, samples: Sequence[int]) -> list[float]:
    """Return what each client counts in the mean, by its samples or all alike; they sum to 1."""
    sizes = np.array([n if settings.weighted else 1 for n in samples], float)
    return (sizes / sizes.sum()).tolist() if len(sizes) else []


def mean_steps(steps: Sequence[int] | np.ndarray, weights: Sequence[float]) -> float:
    """Return the mean number of local steps over a cohort, with the weights of the vectors' mean.

    >>> mean_steps([2, 4], [0.5, 0.5]), mean_steps([2, 4], [0.25, 0.75])
    (3.0, 3.5)
    """
    if len(set(weights)) == 1:
        return float(np.mean(steps))
    return float(np.dot(np.asarray(steps, float), np.asarray(weights)))


def round_of(
    settings: ServerSettings,
    number: int,
    steps: Sequence[int] | np.ndarray,
    weights: Sequence[float],
    share: float,
    lr: float | None = None,
) -> Round:
    """Return what ``aggregate`` may know of a round: its numbers, and the key of the server's noise.

    ``lr`` is the local learning rate (default: what the settings say).
    """
    key = torch.tensor(key_of(settings.seed, "noise of the server", number))
    return Round(
        number,
        lr_of(settings, number) if lr is None else lr,
        mean_steps(steps, weights),
        share,
        n=len(weights),
        key=key,
    )


@dataclass(frozen=True)
class Replies:
    """What a method's server sees client by client: ``rows [n, P]``, and whose they are, in the cohort's order."""

    rows: Vectors
    clients: Sequence[int]
    samples: Sequence[int]
    steps: Sequence[int] | np.ndarray
    weights: Sequence[float]


def server_step(
    algorithm: Algorithm,
    server: Vectors,
    mean: Vectors,
    rnd: Round,
    size: int,
    loss: float | Tensor,
    replies: Replies | None = None,
    masks: Masks = NONE,
) -> Vectors | None:
    """Return the server's new vectors from the mean of what was sent; ``None`` if they, or the loss, are not finite.

    Of a method with rows, ``combine`` first makes one vector of each row's ``replies``. What stays by a method's
    ``masks`` did not come: it is, in what came and in what is sent next, as the server has it. A ``loss`` on the device
    is looked at there, so that the host waits once, after all is queued.

    Raises:
        FedsmooError: if what was sent, or combined, does not have the declared shape.
    """
    refuse_other_shapes(algorithm, mean, size)
    srv = masks.beside(server)
    sent = server if masks.stays is None else algorithm.sent(srv)
    if replies is not None:
        replies = replace(replies, rows=masks.restored(replies.rows, sent))
        mean = mean.replace(**dict(combined(algorithm, srv, replies, rnd, size).items())).pick(algorithm.up)
    new = algorithm.aggregate(srv, masks.restored(mean, sent), rnd)
    if srv is not server:
        new = masks.restored(new.pick(server.names()), server)
    if isinstance(loss, Tensor):
        return new if all_finite(new, loss) else None
    return new if math.isfinite(loss) and all_finite(new) else None


def all_finite(vectors: Vectors, *numbers: Tensor) -> bool:
    """Whether every number is finite: they are if their sum is, which takes one pass; but a sum may overflow."""
    rows = [*(v for _, v in vectors.items()), *numbers]
    if bool(torch.stack([torch.isfinite(v.sum()) for v in rows]).all()):
        return True
    return bool(torch.stack([torch.isfinite(v).all() for v in rows]).all())


def combined(algorithm: Algorithm, server: Vectors, replies: Replies, rnd: Round, size: int) -> Vectors:
    """Return what a method's ``combine`` makes of its rows: one vector for each of them."""

    def column(values: Sequence[float] | np.ndarray) -> Tensor:
        return torch.tensor(np.asarray(values, float), dtype=server.w.dtype, device=server.w.device)[:, None]

    r = replies
    each = replace(rnd, client=column(r.clients), samples=column(r.samples), steps=column(r.steps))
    combine = partial(algorithm.combine, weights=column(r.weights), rnd=each)
    made = by_block(combine, server, r.rows) if algorithm.columnwise else combine(server, r.rows)
    if set(made.names()) != set(algorithm.rows):
        named = ", ".join(made.names()) or "nothing"
        raise FedsmooError(f"{algorithm.label}.combine returns {named}, but rows declares {', '.join(algorithm.rows)}")
    refuse_other_shapes(algorithm, made, size, "combine returns")
    return made.map(torch.clone)  # a row itself would keep all of them in memory


def by_block(combine: Callable[..., Vectors], server: Vectors, rows: Vectors) -> Vectors:
    """Return what a rule that is ``columnwise`` makes of rows, of some columns at a time.

    So what it needs beside the rows is bounded, whatever the model, and the rows may lie in the host's memory. How many
    columns there are in a block follows from the number of rows alone.
    """
    width = max(1, AT_ONCE // max(len(v) for _, v in rows.items()))
    made: dict[str, Tensor] = {}
    for length in dict.fromkeys(v.shape[-1] for _, v in rows.items()):
        same = tuple(n for n, v in rows.items() if v.shape[-1] == length)
        parts = []
        for cut in (slice(start, start + width) for start in range(0, length, width)):
            beside = {n: v[..., cut] if v.shape[-1] == length else v for n, v in server.items()}
            mine = {n: getattr(rows, n)[:, cut].to(server.w.device) for n in same}
            parts.append(combine(Vectors(**beside), Vectors(**mine)))
        made |= {n: torch.cat([getattr(p, n) for p in parts], -1) for n in parts[0].names()}
    return Vectors(**made)


def refuse_other_shapes(algorithm: Algorithm, sent: Vectors, size: int, does: str = "finish sends") -> None:
    """Refuse to count and use what does not have the declared shape: a vector of the model's size, or one number."""
    for name, v in sent.items():
        want = algorithm.length(name, size)
        if tuple(v.shape) != (want,):
            found = f"{v.numel()} numbers" if v.dim() == 1 else f"{tuple(v.shape)} numbers"
            raise FedsmooError(f"{algorithm.label}.{does} {found} as {name}, but declares {want}")


def mean_of_no_replies(algorithm: Algorithm, down: Vectors, rnd: Round) -> Vectors:
    """Return the mean of what was sent where nobody was drawn, for a method that ``expects`` somebody: no change.

    Its public numbers are those of any client that makes ``rnd.steps`` steps.
    """
    w = down.w
    unchanged = [n for n in algorithm.up if n in algorithm.down and n not in algorithm.relative]
    mean = Vectors(**{n: getattr(down, n) if n in unchanged else algorithm.zeros(n, w) for n in algorithm.up})
    if not algorithm.public:
        return mean
    me = algorithm.first_contact(down).replace(**{n: algorithm.zeros(n, w) for n in algorithm.local})
    nobody = w.new_full((1,), math.inf)  # a number beyond all clients', and so beyond those that attack
    one = replace(rnd, steps=w.new_full((1,), rnd.steps), client=nobody)
    for step in range(int(rnd.steps)):
        _, me = algorithm.update(w, torch.zeros_like(w), me, one.at_step(w.new_full((1,), step)))
    _, up = local_end(algorithm, w, down, me, one)
    return mean.replace(**{n: getattr(up, n) for n in algorithm.public})
