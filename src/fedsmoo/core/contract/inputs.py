"""What the functions of a method are called with when it is checked: random vectors, in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.contract.form import CLIENTS, SCALE, Scale, at_scale, to_scale
from fedsmoo.core.contract.tiny import TinyModel, generator_of
from fedsmoo.core.gradient import StepGradient
from fedsmoo.core.random.noise import key_of
from fedsmoo.core.round import NOT_ASKED, Missing, Round
from fedsmoo.core.vectors import Vectors

LR, STEPS = 0.1, (2, 3, 4)
WEIGHTS = (0.5, 0.3, 0.2)
FIRST, EVERYBODY = 0, None
WHO = {
    "client": ((1,), (2,), (0,)),  # of CLIENTS: a server may keep a number for each, and look it up
    "samples": ((4,), (9,), (5,)),
    "labels": ((1, 0, 3), (4, 3, 2), (0, 5, 0)),  # of three classes, and again of others
    "loss": ((1.5,), (0.25,), (0.75,)),
}
KEYS = [key_of(0, "contract", c) for c in range(CLIENTS)]


class Guarded(Vectors):
    """Vectors whose names cannot be given to others."""

    def __init__(self, **parts: Tensor) -> None:
        super().__init__(**parts)
        object.__setattr__(self, "_sealed", True)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_sealed" in vars(self):
            raise AttributeError(f"{name} cannot be set on vectors that are given: write .replace({name}=...)")
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Inputs:
    """What the functions of a method are called with, in the middle of a run: no vector is zero."""

    srv: Vectors
    mean: Vectors
    down: Vectors
    me: Vectors
    w: Tensor
    d: Tensor
    rnd: Round
    grad: StepGradient
    rows: Vectors  # [C, P], for combine
    weights: Tensor

    @property
    def named(self) -> dict[str, Tensor]:
        parts = {"srv": self.srv, "mean": self.mean, "down": self.down, "me": self.me, "rows": self.rows}
        facts = {f"rnd.{n}": v for n, v in self.grad.rnd.tensors().items()}
        return {"w": self.w, "d": self.d} | facts | {f"{p}.{n}": v for p, vs in parts.items() for n, v in vs.items()}


def make_inputs(algorithm: Algorithm, client: int | None, wide: bool = False, unequal: bool = False) -> Inputs:
    """Return the inputs of one client, or of all.

    ``wide``: each has its own copy of what was sent, as in a pack; ``unequal``: batches of other lengths.
    """

    def rows(names: Iterable[str], place: int) -> Vectors:
        found = random_vectors(algorithm, names, place, CLIENTS)
        return guarded(found if client is EVERYBODY else found.map(itemgetter(client)))

    def once(names: Iterable[str], place: int) -> Vectors:
        return guarded(random_vectors(algorithm, names, place))

    marks = make_masks(algorithm)
    down = guarded(once(algorithm.down, 1).replace(**marks))
    if wide and client is EVERYBODY:
        down = guarded(down.map(lambda v: v.expand(CLIENTS, -1).clone()))
    srv = once((*algorithm.down, *algorithm.server), 2)
    # Whatever a method keeps on its server may be a square; the model may be anything.
    srv = guarded(Vectors(**{n: v if n == "w" else v.abs() for n, v in srv.items()}, **marks))
    mine, w, d = rows((*algorithm.own, *algorithm.local), 4), rows(("w",), 5).w, rows(("w",), 6).w
    rnd = make_round(algorithm, client)
    grad, weights = make_gradient(algorithm, rnd, 1, client, unequal), to_scale(torch.tensor(WEIGHTS))[:, None]
    replies = guarded(random_vectors(algorithm, algorithm.rows, 7, CLIENTS))
    return Inputs(srv, once(algorithm.up, 3), down, mine, w, d, rnd, grad, replies, weights)


def make_round(algorithm: Algorithm, client: int | None) -> Round:
    """Return what one client, or each of all, is told of a round."""
    classes = torch.arange(SCALE.get().classes) % 3
    facts: dict[str, Any] = {}
    for n, values in WHO.items():
        v = torch.tensor(values if client is EVERYBODY else values[client])
        facts[n] = to_scale(v[..., classes] if n == "labels" else v)
    facts |= {} if "loss" in algorithm.asks else {"loss": Missing(NOT_ASKED)}
    steps = to_scale(torch.tensor(STEPS))[:, None] if client is EVERYBODY else STEPS[client]
    keys = torch.tensor(KEYS).to(SCALE.get().device)
    return Round(1, LR, steps, 0.5, **facts, key=keys if client is EVERYBODY else keys[client])


def make_gradient(
    algorithm: Algorithm, rnd: Round, step: int, client: int | None, unequal: bool = False
) -> StepGradient:
    """Return the ``grad`` of a local step of one client, or of all of them at once."""
    model, clients = TinyModel(client, algorithm.features, unequal), CLIENTS if client is EVERYBODY else None
    return StepGradient(quadratic(client), rnd.at_step(torch.full_like(rnd.client, step)), model, clients)


def make_masks(algorithm: Algorithm) -> dict[str, Tensor]:
    """Return the method's masks: every other number, every third, and so on."""
    every = torch.arange(SCALE.get().size)
    return {n: to_scale((every % (k + 2) == 0).double()) for k, n in enumerate(algorithm.masks)}


def guarded(v: Vectors) -> Vectors:
    return Guarded(**dict(v.items()))


def random_vectors(algorithm: Algorithm, names: Iterable[str], place: int, clients: int | None = None) -> Vectors:
    """Return named vectors, or numbers where the method declares such, of the scale in force."""
    lead, generator = () if clients is None else (clients,), generator_of(place)
    sizes = {n: (*lead, algorithm.length(n, SCALE.get().size)) for n in names}
    return Vectors(**{n: to_scale(torch.randn(s, generator=generator, dtype=torch.float64)) for n, s in sizes.items()})


def quadratic(client: int | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the gradient and the loss of a quadratic of one client, or of all of them at once.

    It has no running statistics, and leaves those of a model as they are.
    """
    size = SCALE.get().size
    a = 1.0 + torch.arange(CLIENTS * size, dtype=torch.float64).reshape(CLIENTS, size).remainder(21) / 10
    b = torch.randn((CLIENTS, size), generator=generator_of(9), dtype=torch.float64)
    a, b = (to_scale(v if client is EVERYBODY else v[client]) for v in (a, b))
    return lambda v, running=None: (a * (v - b), 0.5 * (a * (v - b) ** 2).sum(-1))


def call_function(algorithm: Algorithm, name: str, x: Inputs) -> Any:
    """Call a function of a method with what an engine would give it."""
    if name == "combine":
        everybody = replace(make_round(algorithm, EVERYBODY), n=CLIENTS)
        return algorithm.combine(x.srv, x.rows, x.weights, everybody)
    arguments = {
        "init": (x.w,),
        "sent": (x.srv,),
        "first_contact": (x.down,),
        "aggregate": (x.srv, x.mean, replace(x.rnd, n=CLIENTS)),
        "start": (x.down, x.me),
        "slope": (x.w, x.grad, x.down, x.me),
        "direction": (x.w, x.grad, x.down, x.me),
        "pull": (x.w, x.down),
        "update": (x.w, x.d, x.me, x.grad.rnd),
        "finish": (x.w, x.down, x.me, x.rnd),
        "personal": (x.down, x.me),
    }[name]
    return getattr(algorithm, name)(*arguments)


def asks_more(algorithm: Algorithm, run: Scale) -> bool:
    """Return whether a local step asks for more than gradients of the run's loss: outputs, or a loss of its own."""
    grad = try_local_step(algorithm, run)
    return grad is not None and grad.asked_more


def couples(algorithm: Algorithm, run: Scale) -> bool:
    """Return whether a loss of a method's own looks at a whole batch, so that it would count padding."""
    grad = try_local_step(algorithm, run)
    model = None if grad is None else grad.model
    try:
        return isinstance(model, TinyModel) and any(model.sees_others(*one) for one in model.asked)
    except Exception:  # the user's own code: a step says what is wrong with it
        return False


def try_local_step(algorithm: Algorithm, run: Scale) -> StepGradient | None:
    """Take one local step, on small vectors or else on the run's, and return its ``grad``; ``None`` if all fail."""
    for scale in (Scale(), run.small, run):
        with at_scale(scale), suppress(Exception):  # what is wrong with it, the contract's checks say
            x = make_inputs(algorithm.at(0), FIRST)
            call_function(algorithm.at(0), "direction", x)
            return x.grad
    return None
