"""A method around another one: the base of options that any method may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Algorithm, Gradient, Round, Vectors, derived, option


@dataclass(frozen=True)
class Around(Algorithm):
    """Base of what is put around any method: it does what the inner method does, and a subclass overrides the rest."""

    inner: Algorithm = option(FedAvg(), "the method inside", positional=True)

    @property
    def shared(self) -> tuple[str, ...]:
        """What travels both ways whole: what clients change of it is what they send less what they received."""
        return tuple(n for n in self.up if n in self.down and n not in self.inner.relative)

    @property
    def radius(self) -> float | None:
        return self.inner.radius

    def agreement(self, server: Vectors, me: Vectors) -> tuple[Tensor, Tensor] | None:
        return self.inner.agreement(server, me)

    def init(self, w: Tensor) -> Vectors:
        return self.inner.init(w)

    def sent(self, srv: Vectors) -> Vectors:
        return self.inner.sent(srv)

    def first_contact(self, down: Vectors) -> Vectors:
        return self.inner.first_contact(down)

    def start(self, down: Vectors, me: Vectors) -> Tensor:
        return self.inner.start(down, me)

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return self.inner.direction(w, grad, down, me)

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return self.inner.pull(w, down)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return self.inner.finish(w, down, me, rnd)

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        return self.inner.update(w, d, me, rnd)

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        return self.inner.combine(srv, rows, weights, rnd)

    @property
    def has_personal(self) -> bool:
        return type(self).personal is not Around.personal or self.inner.has_personal

    def personal(self, down: Vectors, me: Vectors) -> Tensor | None:
        return self.inner.personal(down, me)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return self.inner.aggregate(srv, mean, rnd)

    def bytes_of(self, name: str, numbers: int, width: int) -> int:
        return self.inner.bytes_of(name, numbers, width)

    def bytes_up(self, name: str, numbers: int, width: int) -> int:
        return self.inner.bytes_up(name, numbers, width)


def of_inner(name: str) -> Any:
    """Declare what the method inside declares under a name."""
    return derived(lambda self: getattr(self.inner, name))


# Whatever a method declares of its vectors, and of what it asks for, is as the method inside declares it.
for _name in (n for n, hint in Algorithm.__annotations__.items() if hint.startswith("ClassVar")):
    setattr(Around, _name, of_inner(_name))
