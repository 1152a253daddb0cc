"""One client's local step, and the end of its round, written once for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm, Gradient
from fedsmoo.core.round import Round
from fedsmoo.core.vectors import Vectors, norm

BLOCK = 1 << 17  # numbers


@dataclass(frozen=True)
class LocalRule:
    """How a direction becomes a step: ``w -= lr * (clip(d) + weight_decay * w)``.

    ``clip`` scales the direction to at most that norm (``None``: never). With ``clip_scope = "released"`` the proximal
    term is added after the clip, as the authors' released code does.
    """

    weight_decay: Any = 0.0
    clip: float | None = None
    clip_scope: str = "all"


def clipped(d: Tensor, limit: float | None) -> Tensor:
    """Scale ``d`` to a norm of at most ``limit`` over the last axis."""
    if limit is None:
        return d
    return d * clip_factor(d, limit)


def clip_factor(d: Tensor, limit: float) -> Tensor:
    """Return the number that scales ``d`` to a norm of at most ``limit``: at most 1."""
    return (limit / norm(d)).clamp(max=1.0)  # limit / 0 is inf, which clamps to 1


def local_step(
    algorithm: Algorithm, rule: LocalRule, w: Tensor, grad: Gradient, down: Vectors, me: Vectors
) -> tuple[Tensor, Vectors]:
    """Return the model and the client's vectors after one local step, of the round ``grad.rnd``."""
    d, me = algorithm.direction(w, grad, down, me)
    pull = algorithm.pull(w, down)
    if pull is None and can_step_blockwise(algorithm, rule, w, d, grad.rnd):
        return step_blockwise(w, d, rule, grad.rnd.lr), me
    if pull is None:
        d = clipped(d, rule.clip)
    elif rule.clip_scope == "released":
        d = clipped(d, rule.clip) + pull
    else:
        d = clipped(d + pull, rule.clip)
    return algorithm.update(w, with_weight_decay(d, rule, w), me, grad.rnd)


def with_weight_decay(d: Tensor, rule: LocalRule, w: Tensor) -> Tensor:
    """Return a direction with weight decay; compilers leave out one of 0 themselves."""
    is_none = isinstance(rule.weight_decay, float | int) and rule.weight_decay == 0 and d.device.type == "cpu"
    return d if is_none and not torch.compiler.is_compiling() else d + rule.weight_decay * w


def can_step_blockwise(algorithm: Algorithm, rule: LocalRule, w: Tensor, d: Tensor, rnd: Round) -> bool:
    """Return whether :func:`step_blockwise` can take the step: on a CPU, by a method that updates as most do."""
    alike = type(w) is type(d) is Tensor and w.shape == d.shape and w.dtype == d.dtype
    if not alike or w.device.type != "cpu" or torch.compiler.is_compiling() or w.requires_grad or d.requires_grad:
        return False
    numbers = isinstance(rnd.lr, float | int) and isinstance(rule.weight_decay, float | int)
    return numbers and type(algorithm).update is Algorithm.update


def step_blockwise(w: Tensor, d: Tensor, rule: LocalRule, lr: float) -> Tensor:
    """Return the models after a step: the operations of :func:`local_step`, to the bit, in as little memory as can be.

    One large model is stepped block by block, each of which stays in a core's cache from the first operation to the
    last.
    """
    if rule.clip is None and rule.weight_decay == 0:
        new = lr * d
        return torch.sub(w, new, out=new)
    scale, new = None if rule.clip is None else clip_factor(d, rule.clip), torch.empty_like(w)
    whole = w.dim() > 1 or len(w) < 4 * BLOCK
    one, other = (new, torch.empty_like(w)) if whole else w.new_empty(2, BLOCK).unbind()
    for old, part, out in ((w, d, new),) if whole else zip(*(v.split(BLOCK) for v in (w, d, new)), strict=True):
        if len(old) < len(one):
            one, other = one[: len(old)], other[: len(old)]
        if scale is not None:
            part = torch.mul(part, scale, out=one)
        if rule.weight_decay != 0:
            part = torch.add(part, torch.mul(old, rule.weight_decay, out=other), out=one)
        torch.sub(old, torch.mul(part, lr, out=one), out=out)
    return new


def masked_step(
    algorithm: Algorithm, rule: LocalRule, w: Tensor, grad: Gradient, down: Vectors, me: Vectors, active: Tensor | None
) -> tuple[Tensor, Vectors]:
    """Make one local step of C clients; those that are not ``active [C, 1]`` (``None``: all are) keep still."""
    new_w, new_me = local_step(algorithm, rule, w, grad, down, me)
    if active is None:
        return new_w, new_me
    old = dict(me.items())
    kept = {n: v if v is old[n] else torch.where(active, v, old[n]) for n, v in new_me.items()}
    return torch.where(active, new_w, w), Vectors(**kept)


def local_end(algorithm: Algorithm, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
    """Return what a client keeps and sends after its steps: what is declared, single numbers as ``[.., 1]`` tensors."""
    me, up = algorithm.finish(w, down, me, rnd)
    me, up = me.pick(algorithm.own), up.pick(algorithm.up)
    if not algorithm.scalars:
        return me, up

    def number(v: Any) -> Tensor:
        return torch.as_tensor(v, dtype=w.dtype, device=w.device).expand(*w.shape[:-1], 1)

    def numbers(vectors: Vectors) -> Vectors:
        return vectors.replace(**{n: number(v) for n, v in vectors.items() if n in algorithm.scalars})

    return numbers(me), numbers(up)
