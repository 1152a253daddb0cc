"""What depends on a method's vectors: whether one that is declared reaches anything, by pushing it and looking on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm, Gradient
from fedsmoo.core.contract import inputs
from fedsmoo.core.contract.form import CLIENTS
from fedsmoo.core.contract.inputs import EVERYBODY, FIRST, KEYS
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.local import LocalRule, local_end, local_step
from fedsmoo.core.round import Round
from fedsmoo.core.vectors import Vectors

STEPS, LR = 2, 0.1
RULE = LocalRule(weight_decay=0.01, clip=2.0)
# Where dependence is looked for: points of several sizes, and pushes of several sizes from each. A clamp, a sign or a
# threshold hides a vector in one place, and not in all.
POINTS = (1.0, 1e-3, 30.0)
PUSHES = (100.0, -100.0, 1.0, 1e-4)


def unused(algorithm: Algorithm) -> tuple[list[str], list[str]]:
    """Declared vectors that nothing depends on; and, apart, own vectors that only they themselves depend on.

    A client's own vector may be an end in itself, such as a personal model, as long as rounds change it.
    """
    algorithm = generic(algorithm)
    states = [State.make(algorithm, scale) for scale in POINTS]
    wrong: list[str] = []
    notes: list[str] = []
    for place in ("down", "own", "local", "up", "server"):
        for name in getattr(algorithm, place):
            answers = [dependence(algorithm, s, place, name) for s in states]
            if not any(others for others, _ in answers):
                said = f"{algorithm.label}.{place} declares {name!r}, but nothing depends on it"
                if flows(algorithm, states[0], place, name):
                    notes.append(f"{said} on the vectors tried: does what reads it ever show?")
                    continue
                lives = any(itself for _, itself in answers)
                (notes if lives else wrong).append(f"{said} but itself: a personal model?" if lives else said)
    return wrong, notes


@dataclasses.dataclass(frozen=True)
class State:
    """A server, what a client was sent and keeps, and what was sent back, in the middle of a run."""

    srv: Vectors
    mean: Vectors
    down: Vectors
    me: Vectors  # own and, for one round, local

    @classmethod
    def make(cls, algorithm: Algorithm, scale: float) -> State:
        a = algorithm

        def some(names: Iterable[str], place: int) -> Vectors:
            return inputs.random_vectors(a, names, place).map(lambda v: scale * v)

        srv = some((*a.down, *a.server), 12)
        srv = Vectors(**{n: v if n == "w" else v.abs() for n, v in srv.items()}, **inputs.make_masks(a))
        return cls(srv, some(a.up, 13), some(a.down, 11).replace(**inputs.make_masks(a)), some((*a.own, *a.local), 14))


def dependence(algorithm: Algorithm, s: State, place: str, name: str) -> tuple[bool, bool]:
    """Whether a push of a vector shows in any other; and whether a round changes it itself."""
    if place in ("up", "server"):
        kept = next_server(algorithm, s.srv, s.mean)
        moved = (
            next_server(algorithm, s.srv, v) if place == "up" else next_server(algorithm, v, s.mean)
            for v in pushed(s.mean if place == "up" else s.srv, name)
        )
        if place == "server":  # it has to reach what is sent, now or, over other vectors, a round later
            return any(differs(reach(algorithm, kept, s), reach(algorithm, m, s)) for m in moved), False
        return any(differs(kept, m) for m in moved), False
    plain = one_round(algorithm, s.down, s.me)
    if place == "down":
        return any(differs(plain, one_round(algorithm, v, s.me)) for v in pushed(s.down, name)), False
    mine = f"own {name}"
    after = (one_round(algorithm, s.down, v) for v in pushed(s.me, name))
    brief = PUSHES if place == "local" else ()  # it may live from a step's direction to its update, or to the end
    late = (one_round(algorithm, s.down, s.me, late=(name, push)) for push in brief)
    between = (cast("Algorithm", Between(algorithm, partial(push, name=name, by=by))) for by in brief)
    within = (one_round(a, s.down, s.me) for a in between)
    others = any(differs(without(plain, mine), without(m, mine)) for vs in (after, late, within) for m in vs)
    return others, place == "own" and not torch.equal(getattr(plain, mine), getattr(s.me, name))


def flows(algorithm: Algorithm, s: State, place: str, name: str) -> bool:
    """Whether arithmetic leads from a vector to any other, though no push shows: a minimum may be another one's."""

    def live(v: Vectors) -> Vectors:
        return v.replace(**{name: getattr(v, name).clone().requires_grad_()})

    with torch.enable_grad():
        if place == "up":
            found = [next_server(algorithm, s.srv, live(s.mean))]
        elif place == "server":
            found = [reach(algorithm, next_server(algorithm, live(s.srv), s.mean), s)]
        elif place == "down":
            found = [one_round(algorithm, live(s.down), s.me)]
        else:
            within = cast("Algorithm", Between(algorithm, live))
            found = [one_round(a, s.down, live(s.me)) for a in (algorithm, within)]
    return any(v.requires_grad for vectors in found for n, v in vectors.items() if n != f"own {name}")


class Between:
    """A method whose vectors are changed between the direction of a step and its update."""

    def __init__(self, inner: Algorithm, change: Callable[[Vectors], Vectors]) -> None:
        self.inner, self.change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        return self.inner.update(w, d, self.change(me), rnd)


def next_server(algorithm: Algorithm, srv: Vectors, mean: Vectors) -> Vectors:
    rnd = Round(1, LR, float(STEPS), 0.5, n=CLIENTS, key=torch.tensor(KEYS[0]))
    if algorithm.rows:  # of which every client's are others
        many = torch.linspace(0.8, 1.2, CLIENTS, dtype=torch.float64)[:, None]
        rows, everybody = mean.pick(algorithm.rows).map(lambda v: many * v), inputs.make_round(algorithm, EVERYBODY)
        weights = torch.full_like(many, 1 / CLIENTS)
        made = algorithm.combine(srv, inputs.guarded(rows), weights, dataclasses.replace(everybody, n=CLIENTS))
        mean = mean.replace(**dict(made.items()))
    return algorithm.aggregate(inputs.guarded(srv), inputs.guarded(mean), rnd)


def reach(algorithm: Algorithm, srv: Vectors, s: State) -> Vectors:
    """Return what a server sends now, and in as many rounds as its vectors may need to pass on what they hold."""
    sent: dict[str, Tensor] = {}
    for k in range(len(algorithm.server) + 2):
        sent |= {f"{k} {n}": v for n, v in algorithm.sent(srv).items()}
        srv = next_server(algorithm, srv, s.mean)
    return Vectors(**sent)


def one_round(algorithm: Algorithm, down: Vectors, me: Vectors, late: tuple[str, float] | None = None) -> Vectors:
    """Return what one client sends and keeps; ``late`` changes a local vector before the round ends."""
    kept, up = a_client(algorithm, down, me, steps_of(algorithm, FIRST), late)
    served = algorithm.personal(down, kept)
    mine = {} if served is None else {"the personal model": served}
    return Vectors(**{f"up {n}": v for n, v in up.items()}, **{f"own {n}": v for n, v in kept.items()}, **mine)


def steps_of(algorithm: Algorithm, client: int | None) -> list[Gradient]:
    """Return the ``grad`` of every local step of one client, or of all."""
    return [inputs.make_gradient(algorithm, inputs.make_round(algorithm, client), k, client) for k in range(STEPS)]


def a_client(
    algorithm: Algorithm, down: Vectors, me: Vectors, steps: list[Gradient], late: tuple[str, float] | None = None
) -> tuple[Vectors, Vectors]:
    """Run the round of one client, or of C clients; return their own vectors and what is sent."""
    rnd = steps[-1].rnd
    w = algorithm.start(down, me).expand(*rnd.client.shape[:-1], -1)
    for grad in steps:
        w, me = local_step(algorithm, RULE, w, grad, down, me)
    if late is not None:
        me = push(me, *late)
    return local_end(algorithm, w, down, me, rnd)


def push(v: Vectors, name: str, by: float) -> Vectors:
    """Vectors with one of them moved, in all directions."""
    part = getattr(v, name)
    return v.replace(**{name: part + by * (1 + torch.arange(part.shape[-1], dtype=part.dtype))})


def pushed(v: Vectors, name: str) -> Iterator[Vectors]:
    return (push(v, name, by) for by in PUSHES)


def without(v: Vectors, name: str) -> Vectors:
    return v.pick(tuple(n for n in v.names() if n != name))


def differs(a: Vectors, b: Vectors) -> bool:
    return any(not torch.equal(v, getattr(b, n)) for n, v in a.items())


def changed(algorithm: Algorithm, change: Callable[[float], Any]) -> Algorithm:
    """Return the method with its numbers changed, also those of a method inside it, within their ranges."""
    for name, value in algorithm.options().items():
        new = changed(value, change) if isinstance(value, Algorithm) else value
        new = change(value) if isinstance(value, float) else new
        try:
            algorithm = dataclasses.replace(algorithm, **{name: new})
        except FedsmooError:
            continue  # out of its range
    return algorithm


def generic(algorithm: Algorithm) -> Algorithm:
    """Return the method with numbers other than 0 and 1, which may switch terms off, as alpha = 1 does in FedCM."""
    return changed(algorithm, lambda v: {0.0: 0.5, 1.0: 0.9}.get(v, v))
