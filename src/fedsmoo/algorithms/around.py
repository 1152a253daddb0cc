"""A method around another one: the base of options that any method may have."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Algorithm, Gradient, Round, Vectors, derived, option


@dataclass(frozen=True)
class Around(Algorithm):
    """Base of what is put around any method: it does what the inner method does, and a subclass overrides the rest."""

    inner: Algorithm = option(FedAvg(), "the method inside", positional=True)

    down = derived(lambda self: self.inner.down)
    server = derived(lambda self: self.inner.server)
    own = derived(lambda self: self.inner.own)
    local = derived(lambda self: self.inner.local)
    up = derived(lambda self: self.inner.up)
    scalars = derived(lambda self: self.inner.scalars)
    sizes = derived(lambda self: self.inner.sizes)
    rows = derived(lambda self: self.inner.rows)
    relative = derived(lambda self: self.inner.relative)
    public = derived(lambda self: self.inner.public)
    columnwise = derived(lambda self: self.inner.columnwise)
    masks = derived(lambda self: self.inner.masks)
    stays = derived(lambda self: self.inner.stays)
    expects = derived(lambda self: self.inner.expects)
    moving = derived(lambda self: self.inner.moving)
    asks = derived(lambda self: self.inner.asks)
    statistics = derived(lambda self: self.inner.statistics)
    features = derived(lambda self: self.inner.features)
    of_classes = derived(lambda self: self.inner.of_classes)

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
