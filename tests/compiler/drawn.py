"""Methods of random arithmetic: what a step and the end of a round may be made of, drawn with a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsmoo.algorithms import FedAvg
from fedsmoo.core import Vectors, norm, option

# Tame, so that a last bit stays one: results are about as large as arguments, and jumps are small.
OF_ONE: list[Callable[[Any], Any]] = [
    lambda x: -x,
    lambda x: x.abs(),
    lambda x: 0.5 * x**2,
    lambda x: torch.sqrt(0.3 + x.abs()),
    lambda x: torch.rsqrt(0.7 + x.square()),
    lambda x: torch.exp(-x.abs()),
    lambda x: torch.log(1.1 + x.abs()),
    lambda x: torch.sigmoid(x),
    lambda x: 1 / (1.3 + x.abs()),
    lambda x: 1.7 - x,
    lambda x: x / 3,
    lambda x: x.clamp(min=-0.1),
    lambda x: x.clamp(max=0.3),
    lambda x: x.clamp(-0.7, 0.7),
    lambda x: x.clamp(max=1.0),
    lambda x: torch.where(x > 0.013, x, 0.1 * x),
    lambda x: x * (x <= 0.2),
    lambda x: torch.maximum(x, torch.zeros_like(x)),
]
OF_TWO: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x / (1.2 + abs(y)),
    lambda x, y: torch.add(x, y, alpha=0.3),
    lambda x, y: torch.sub(x, y, alpha=3),
    lambda x, y: torch.maximum(x, y),
    lambda x, y: torch.minimum(x, y),
    lambda x, y: torch.where(x > 0.4 * y, x, 0.5 * y),
    lambda x, y: (x < y) * x + y * (x >= y),
]
PLAIN = 4  # of these take numbers, too
TO_NUMBER: list[Callable[[Any], Any]] = [
    norm,
    lambda x: (0.9 / norm(x)).clamp(max=1.0),
    lambda x: x.sum(-1, keepdim=True) / x.shape[-1],
    lambda x: (x * x.abs()).sum(-1, keepdim=True) / x.shape[-1],
]


def soft(x: Any) -> Any:
    return x / (1 + abs(x))


def grow(draw: random.Random, vectors: list[Any], numbers: list[Any], count: int) -> None:
    """Compute so many vectors and numbers of what is there."""
    for _ in range(count):
        kind, some = draw.random(), draw.choice([vectors, vectors[-3:]])
        if kind < 0.3:
            vectors.append(draw.choice(OF_ONE)(draw.choice(some)))
        elif kind < 0.6:
            vectors.append(soft(draw.choice(OF_TWO)(draw.choice(some), draw.choice(vectors))))
        elif kind < 0.75:
            vectors.append(soft(draw.choice(some) * draw.choice(numbers)))
        elif kind < 0.9:
            numbers.append(draw.choice(TO_NUMBER)(draw.choice(some)))
        else:
            numbers.append(soft(draw.choice(OF_TWO[:PLAIN])(draw.choice(numbers), draw.choice(numbers))))


@dataclass(frozen=True)
class Drawn(FedAvg):
    """Vectors of every kind, single numbers and one that moves, and one to three gradients in a step."""

    seed: int = 0
    r: float = option(0.1, "a number that may move")
    down: ClassVar[tuple[str, ...]] = ("w", "s", "t")
    own: ClassVar[tuple[str, ...]] = ("a", "v")
    local: ClassVar[tuple[str, ...]] = ("b", "c")
    up: ClassVar[tuple[str, ...]] = ("w", "u", "k")
    scalars: ClassVar[tuple[str, ...]] = ("t", "v", "k")

    def numbers(self, down, me, rnd):
        return [self.r, down.t, me.v, rnd.lr, rnd.steps, rnd.samples / 10, 0.1 * rnd.number, rnd.share]

    def direction(self, w, grad, down, me):
        draw = random.Random(self.seed)
        vectors, numbers = [w, down.w, down.s, me.a, me.b, me.c], self.numbers(down, me, grad.rnd)
        numbers += [grad.rnd.step] * (draw.random() < 0.4)
        grow(draw, vectors, numbers, draw.choice([0, 0, 3]))
        first = grad(w if draw.random() < 0.5 else w + 0.1 * soft(draw.choice(vectors)))
        vectors += [first] * 3
        for _ in range(draw.choice([0, 0, 1, 2])):
            grow(draw, vectors, numbers, draw.randint(0, 4))
            vectors.append(grad(draw.choice([w, down.w, w]) + 0.1 * soft(draw.choice(vectors))))
        used = vectors[6:]
        grow(draw, vectors, numbers, draw.randint(0, 6))
        new = {n: draw.choice([me.a, me.b, me.c, w, *vectors, *vectors]) for n in "abc" if draw.random() < 0.6}
        d = 0.5 * first + 0.1 * sum(map(soft, used)) + soft(vectors[-1])
        d = d * (1 + 0.1 * soft(numbers[-1]))
        return d, me.replace(**{n: v.expand_as(w) for n, v in new.items()})

    def pull(self, w, down):
        draw = random.Random(-2 - 3 * self.seed)
        if draw.random() < 0.5:
            return None
        vectors, numbers = [w, down.w, down.s], [self.r, down.t]
        grow(draw, vectors, numbers, draw.randint(0, 4))
        return 0.1 * soft(vectors[-1]) + 0.05 * (w - down.w)

    def update(self, w, d, me, rnd):
        draw = random.Random(-3 - 3 * self.seed)
        vectors, numbers = [w, d, d, me.a, me.b, me.c], [self.r, rnd.lr, me.v, rnd.step, rnd.steps, rnd.share]
        if draw.random() < 0.5:
            return super().update(w, d, me, rnd)
        grow(draw, vectors, numbers, draw.randint(0, 5))
        new = {n: draw.choice(vectors).expand_as(w) for n in "abc" if draw.random() < 0.4}
        return w - rnd.lr * (d + 0.1 * soft(vectors[-1])) * (1 + 0.1 * soft(numbers[-1])), me.replace(**new)

    def finish(self, w, down, me, rnd):
        draw = random.Random(-1 - self.seed)
        vectors, numbers = [w, down.w, down.s, me.a, me.b, me.c], self.numbers(down, me, rnd)
        grow(draw, vectors, numbers, draw.randint(0, 10))
        a, u = (draw.choice([*vectors[-3:], me.a, me.b]).expand_as(w) for _ in range(2))
        return me.replace(a=soft(a), v=soft(numbers[-1])), Vectors(w=w, u=u, k=soft(draw.choice(numbers)))

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w, s=0.5 * srv.s + soft(mean.u), t=soft(srv.t + 0.2 + mean.k))
