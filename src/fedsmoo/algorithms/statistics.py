"""Running statistics of a model (those of BatchNorm) around any method: averaged, kept by each client, or recomputed.

They are a vector of their own beside the model's: no momentum, dual or proximal term of a method touches them. They
change once in a local step, in the first gradient that the method asks for.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsmoo.algorithms.around import Around
from fedsmoo.core import Algorithm, FedsmooError, Gradient, Round, Vectors, derived
from fedsmoo.core.gradient import Running

NAME = "statistics"  # of their vector


class First:
    """Statistics before the first round. Those of two models that are alike are equal, so that runs can be compared."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._placed: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, w: Tensor) -> Tensor:
        """Return them where a model is, and in its type; copied there once."""
        key = w.device, w.dtype
        if key not in self._placed:
            self._placed[key] = self.values.to(*key)
        return self._placed[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, First) and torch.equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.values.shape)


@dataclass(frozen=True)
class Recomputed(Around):
    """Any method, whose clients forget the statistics of their steps; the global model's are computed afresh.

    client   every step from the first statistics, whose changes are lost
    server   before an evaluation, s = those of the model w on some training samples
    """

    first: First = dataclasses.field(default=First(torch.zeros(0)), repr=False)

    sizes = derived(lambda self: {**self.inner.sizes, NAME: len(self.first.values)})
    server = derived(lambda self: (*self.inner.server, NAME))

    def __post_init__(self) -> None:
        super().__post_init__()
        a = self.inner
        if NAME in (*a.down, *a.server, *a.own, *a.local, *a.up, *a.masks):
            raise FedsmooError(
                f"{a.label} has a vector {NAME!r}, and so has a model with running statistics: name the method's "
                "otherwise"
            )

    def init(self, w: Tensor) -> Vectors:
        return self.inner.init(w).replace(statistics=self.first.like(w).clone())

    def running(self, grad: Gradient, down: Vectors, me: Vectors) -> Running:
        """Return a client's statistics at a step."""
        return Running(self.first.like(down.w).expand(*grad.rnd.step.shape[:-1], -1))

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        running = self.running(grad, down, me)
        d, me = self.inner.direction(w, grad.carrying(running), down, me)
        return d, self.after(me, running.now)

    def after(self, me: Vectors, now: Tensor) -> Vectors:
        """Return a client's vectors with its statistics after a step."""
        return me

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return self.inner.aggregate(srv, mean, rnd).replace(statistics=srv.statistics)

    def bytes_of(self, name: str, numbers: int, width: int) -> int:
        return numbers * width if name == NAME else self.inner.bytes_of(name, numbers, width)

    def bytes_up(self, name: str, numbers: int, width: int) -> int:
        return numbers * width if name == NAME else self.inner.bytes_up(name, numbers, width)

    @property
    def label(self) -> str:
        return self.inner.label


@dataclass(frozen=True)
class Local(Recomputed):
    """Any method, whose clients each keep their own statistics; the global model's are computed afresh.

    client   s_i changes in every step, and stays.  w with s_i serves the client
    server   as with ``recomputed``
    """

    own = derived(lambda self: (*self.inner.own, NAME))

    def first_contact(self, down: Vectors) -> Vectors:
        return self.inner.first_contact(down).replace(statistics=self.first.like(down.w))

    def running(self, grad: Gradient, down: Vectors, me: Vectors) -> Running:
        return Running(me.statistics)

    def after(self, me: Vectors, now: Tensor) -> Vectors:
        return me.replace(statistics=now)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        mine, up = self.inner.finish(w, down, me, rnd)
        return mine.replace(statistics=me.statistics), up

    def personal(self, down: Vectors, me: Vectors) -> Tensor | None:
        mine = self.inner.personal(down, me)
        return down.w if mine is None else mine


@dataclass(frozen=True)
class Averaged(Recomputed):
    """Any method, whose clients go on from the server's statistics and send theirs, which are averaged as models are.

    client   s_i = s;   changes in every step;   sends s_i
    server   s = mean(s_i)
    """

    server = derived(lambda self: self.inner.server)
    down = derived(lambda self: (*self.inner.down, NAME))
    local = derived(lambda self: (*self.inner.local, NAME))
    up = derived(lambda self: (*self.inner.up, NAME))

    def sent(self, srv: Vectors) -> Vectors:
        return self.inner.sent(srv).replace(statistics=srv.statistics)

    def running(self, grad: Gradient, down: Vectors, me: Vectors) -> Running:
        return Running(torch.where(grad.rnd.step == 0, down.statistics, me.statistics))

    def after(self, me: Vectors, now: Tensor) -> Vectors:
        return me.replace(statistics=now)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        mine, up = self.inner.finish(w, down, me, rnd)
        return mine, up.replace(statistics=me.statistics)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return self.inner.aggregate(srv, mean, rnd).replace(statistics=mean.statistics)


# The setting statistics -> what is put around the method of a model that has some.
STATISTICS: dict[str, type[Recomputed]] = {"averaged": Averaged, "local": Local, "recomputed": Recomputed}


def recomputes(algorithm: Algorithm) -> bool:
    """Whether nobody sends the global model's statistics, so that they are to be computed before it is evaluated."""
    return NAME in algorithm.server


class RunSettings(Protocol):
    """The settings of a run that decide about running statistics."""

    @property
    def statistics(self) -> str: ...
    @property
    def privacy(self) -> str: ...


def with_statistics(method: Algorithm, run: RunSettings, first: Tensor | None) -> Algorithm:
    """Return a method for a model whose running statistics are these at first; ``None``: it has none.

    Raises:
        FedsmooError: if the method has them in another way than the run says, or a setting changes or hides nothing.
    """
    policy, declared = run.statistics, method.statistics
    if first is None:
        if policy != "averaged":
            raise FedsmooError(f"statistics is {policy!r}, but the model has none that run: leave it out")
        return method
    if declared is not None and policy not in ("averaged", declared):
        raise FedsmooError(f"statistics is {policy!r}, but {method.label} has them {declared}: leave it out")
    if run.privacy != "off":
        raise FedsmooError(
            f"privacy={run.privacy} does not hide running statistics (BatchNorm): use nn.GroupNorm in the model"
        )
    return STATISTICS[declared or policy](method, first=First(first))
