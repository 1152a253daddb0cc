"""Boxes whose clients are FedAvg's and whose server is not: FedExP, FedNova, and the robust rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .averaging import fedavg
from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, norm, start


def local_models(loss_grad: LossGrad, w: Model, rnd: Round, last: dict[int, Model], h: Hyper) -> dict[int, Model]:
    """FedAvg's clients: plain steps from w."""
    sent = {}
    for i in rnd.cohort:
        w_i = start(w, last.get(i, w), h)
        for batch in rnd.batches[i]:
            w_i = descend(w_i, loss_grad(w_i, batch), None, rnd.lr, h)
        last[i], sent[i] = w_i, w_i
    return sent


def shares(cohort: list[int], h: Hyper) -> dict[int, float]:
    """The clients' weights in a mean, which sum to one."""
    p = h.get("weights") or dict.fromkeys(cohort, 1.0)
    return {i: p[i] / sum(p[j] for j in cohort) for i in cohort}


def fedexp(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Jhunjhunwala et al., ICLR 2023, Algorithm 1: eta_g = max(1, sum ||Delta_i||^2 / (2 n (||Delta||^2 + eps))).

    With weights p_i the sum over n is sum p_i ||Delta_i||^2, as in the released code.
    """
    w, last = w0, {}
    for rnd in rounds:
        sent = local_models(loss_grad, w, rnd, last, h)
        delta = {i: each(lambda a, b: a - b, w_i, w) for i, w_i in sent.items()}
        p = shares(rnd.cohort, h)
        spread = 0.0
        for i in rnd.cohort:
            spread = spread + p[i] * norm(delta[i]) ** 2
        total = mean(delta, h)
        eta = max(1.0, spread / (2 * (norm(total) ** 2 + h["eps"])))
        w = each(lambda a, b, eta=eta: a + eta * b, w, total)
        yield {"w": w, "eta": eta}


def fednova(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Wang et al., NeurIPS 2020: tau_eff sum p_i d_i with d_i = Delta_i / tau_i and tau_eff = sum p_i tau_i."""
    w, last = w0, {}
    for rnd in rounds:
        sent = local_models(loss_grad, w, rnd, last, h)
        p = shares(rnd.cohort, h)
        tau = sum(p[i] * len(rnd.batches[i]) for i in rnd.cohort)
        new = w
        for i in rnd.cohort:
            factor = h["lr_server"] * tau * p[i] / len(rnd.batches[i])
            new = each(lambda a, b, c, factor=factor: a + factor * (b - c), new, sent[i], w)
        w = new
        yield {"w": w}


def robust(
    rule: str, loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper
) -> Iterator[dict[str, Any]]:
    """FedAvg with another rule for the mean: ``layers.mean`` asks ``h["rule"]``."""
    yield from fedavg(loss_grad, w0, rounds, m, h | {"rule": RULES[rule], "lr_server": 1.0})


def median(replies: dict[int, Model], h: Hyper) -> Model:
    """Yin et al., ICML 2018, Definition 1: number by number, the middle one or the mean of the two in the middle."""
    return by_number(replies, lambda v: (v[(len(v) - 1) // 2] + v[len(v) // 2]) / 2)


def trimmed(replies: dict[int, Model], h: Hyper) -> Model:
    """Yin et al., ICML 2018, Definition 2: number by number, without a share of the largest and of the smallest."""
    k = math.floor(h["trim"] * len(replies))
    return by_number(replies, lambda v: sum(v[k : len(v) - k]) / (len(v) - 2 * k))


def by_number(replies: dict[int, Model], rule: Any) -> Model:
    """Apply a rule of sorted floats to every number of the model by itself."""
    result = {}
    for name, like in next(iter(replies.values())).items():
        columns = [v[name].reshape(-1).tolist() for v in replies.values()]
        values = [rule(sorted(column)) for column in zip(*columns, strict=True)]
        result[name] = like.new_tensor(values).reshape(like.shape)
    return result


def krum_order(replies: dict[int, Model], h: Hyper) -> tuple[list[int], int]:
    """Blanchard et al., NeurIPS 2017: clients by the sum of squared distances to their n - f - 2 closest; and f."""
    n = len(replies)
    f = math.floor(h["attackers"] * n)
    score = {}
    for i, a in replies.items():
        far = sorted(norm(each(lambda p, q: p - q, a, b)) ** 2 for j, b in replies.items() if j != i)
        score[i] = sum(far[: max(n - f - 2, 1)])
    return sorted(replies, key=lambda i: score[i]), f


def krum(replies: dict[int, Model], h: Hyper) -> Model:
    return replies[krum_order(replies, h)[0][0]]


def multi_krum(replies: dict[int, Model], h: Hyper) -> Model:
    order, f = krum_order(replies, h)
    return mean({i: replies[i] for i in order[: len(order) - f]}, {})


def geometric(replies: dict[int, Model], h: Hyper) -> Model:
    """Pillutla et al., IEEE TSP 2022: smoothed Weiszfeld from the weighted mean."""
    p = shares(list(replies), h)
    z = mean(replies, {"weights": p})
    for _ in range(h["steps"]):
        beta = {i: p[i] / max(h["nu"], norm(each(lambda a, b: a - b, v, z))) for i, v in replies.items()}
        z = mean(replies, {"weights": beta})
    return z


def bounded(replies: dict[int, Model], h: Hyper) -> Model:
    """Sun et al., 2019: updates (FedAvg's replies here are updates) are shortened to the bound, then averaged."""
    short = {}
    for i, v in replies.items():
        factor = min(1.0, h["bound"] / norm(v))
        short[i] = each(lambda a, factor=factor: factor * a, v)
    return mean(short, {"weights": shares(list(replies), h)})


RULES = {
    "median": median, "trimmed": trimmed, "krum": krum, "multi_krum": multi_krum, "geometric": geometric,
    "bounded": bounded,
}  # fmt: skip
