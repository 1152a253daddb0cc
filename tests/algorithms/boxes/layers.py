"""Arithmetic on models kept as ``{parameter name: tensor}``: layer by layer, nothing is ever flattened.

Everything in this folder except ``test_boxes.py`` is written from the papers alone and imports nothing of the package,
so that an agreement between the two is evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Model = dict[str, Tensor]
LossGrad = Callable[[Model, Any], Model]
Hyper = dict[str, Any]
EPS = 1e-12  # unit(0) is 0: with one local step the first s_tilde of FedSMOO is exactly zero


@dataclass(frozen=True)
class Round:
    """One round as it happened: the learning rate, who took part, and every minibatch each of them drew."""

    lr: float
    cohort: list[int]
    batches: dict[int, list[Any]]


def each(rule: Callable[..., Tensor], *models: Model) -> Model:
    """The same rule on every layer."""
    result = {}
    for name in models[0]:
        result[name] = rule(*[model[name] for model in models])
    return result


def zeros(like: Model) -> Model:
    return each(lambda p: p * 0.0, like)


def norm(v: Model) -> float:
    """The norm of the whole model: squares summed over the layers."""
    total = 0.0
    for name in v:
        total = total + float((v[name] ** 2).sum())
    return math.sqrt(total)


def unit(v: Model) -> Model:
    length = norm(v) + EPS
    return each(lambda p: p / length, v)


def clipped(d: Model, bound: float | None) -> Model:
    """d, shortened to ``bound`` where it is longer."""
    length = norm(d)
    if bound is None or length <= bound:
        return d
    return each(lambda p: p * (bound / length), d)


def mean(sent: dict[int, Model], h: Hyper) -> Model:
    """The mean over the cohort, plain or weighted by ``h["weights"]``; or what another ``h["rule"]`` makes of it."""
    if "rule" in h:
        return h["rule"](sent, h)
    weights = h.get("weights")
    total, result = 0.0, None
    for i, model in sent.items():
        share = 1.0 if weights is None else float(weights[i])
        total = total + share
        scaled = each(lambda p, share=share: p * share, model)
        result = scaled if result is None else each(lambda a, b: a + b, result, scaled)
    assert result is not None, "an empty cohort has no mean"
    return each(lambda p: p / total, result)


def descend(w_i: Model, d: Model, prox: Model | None, lr: float, h: Hyper) -> Model:
    """One local step, ``w_i - lr * (clip(d + prox) + weight_decay * w_i)``.

    With ``clip_scope = "released"`` only d (the gradient and its linear corrections) is clipped and the proximal term
    joins after it, as the weight decay does.
    """
    bound, scope = h.get("clip"), h.get("clip_scope", "all")
    assert scope in ("all", "released"), scope
    if prox is None:
        step = clipped(d, bound)
    elif scope == "all":
        step = clipped(each(lambda a, b: a + b, d, prox), bound)
    else:
        step = each(lambda a, b: a + b, clipped(d, bound), prox)
    decay = h.get("weight_decay", 0.0)
    return each(lambda p, s: p - lr * (s + decay * p), w_i, step)


def start(w: Model, last: Model, h: Hyper) -> Model:
    """Where client i starts: w, or with relaxed initialisation ``w + b (w - w_i,last)`` (FedInit, Sun et al. 2023).

    Only the start moves: every other w in a box stays the model that was received.
    """
    b = h.get("relaxed")
    if b is None:
        return w
    return each(lambda p, q: p + b * (p - q), w, last)


def sam_gradient(loss_grad: LossGrad, w_i: Model, batch: Any, rho: float) -> Model:
    """The gradient at w_i + rho g / ||g||, on the same minibatch (Foret et al. 2021)."""
    g = loss_grad(w_i, batch)
    e = unit(g)
    return loss_grad(each(lambda p, q: p + rho * q, w_i, e), batch)
