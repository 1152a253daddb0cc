"""Boxes with control variates or a shared momentum: SCAFFOLD, FedGamma, FedLESAM-S; FedCM, MoFedSAM; FedLESAM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .averaging import averaged
from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, sam_gradient, start, unit, zeros


def scaffold(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Karimireddy et al., ICML 2020, Algorithm 1 with option II for c_i.

    The (K lr) that turns a drift into a mean gradient is this client's own: K_i steps of this round's lr.
    """
    w, c, c_i, last = w0, zeros(w0), {}, {}
    for rnd in rounds:
        sent, changes = {}, {}
        for i in rnd.cohort:
            mine = c_i.get(i, zeros(w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                d = each(lambda a, b, e: a - b + e, g, mine, c)
                w_i = descend(w_i, d, None, rnd.lr, h)
            span = len(rnd.batches[i]) * rnd.lr
            new = each(lambda a, b, p, q, span=span: a - b + (p - q) / span, mine, c, w, w_i)
            changes[i] = each(lambda a, b: a - b, new, mine)
            c_i[i], last[i], sent[i] = new, w_i, w_i
        w = averaged(w, sent, h)
        share = len(rnd.cohort) / m
        c = each(lambda a, b, share=share: a + share * b, c, mean(changes, h))
        yield {"w": w, "c": c, "c_i": dict(c_i)}


def fedgamma(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Dai et al., TNNLS 2023: SCAFFOLD whose gradient is SAM's; c_i is then a mean SAM gradient."""

    def sam(w_i: Model, batch: Any) -> Model:
        return sam_gradient(loss_grad, w_i, batch, h["rho"])

    yield from scaffold(sam, w0, rounds, m, h)


def fedcm(
    loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper, rho: float = 0.0
) -> Iterator[dict[str, Any]]:
    """FedCM (Xu et al. 2021); with rho > 0 MoFedSAM (Qu et al., ICML 2022).

    alpha weighs the local gradient. The momentum D is a mean gradient per local step. Both papers have one K for all;
    where clients make different numbers of steps, K is their mean over the cohort, with the weights of the drifts.
    """
    w, D, last = w0, zeros(w0), {}
    a = h["alpha"]
    for rnd in rounds:
        sent, drifts = {}, {}
        for i in rnd.cohort:
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                if rho > 0.0:
                    e = unit(g)
                    g = loss_grad(each(lambda p, q: p + rho * q, w_i, e), batch)
                d = each(lambda p, q: a * p + (1 - a) * q, g, D)
                w_i = descend(w_i, d, None, rnd.lr, h)
            last[i], sent[i] = w_i, w_i
            drifts[i] = each(lambda p, q: p - q, w, w_i)
        p = h.get("weights") or dict.fromkeys(rnd.cohort, 1.0)
        K = sum(p[i] * len(rnd.batches[i]) for i in rnd.cohort) / sum(p[i] for i in rnd.cohort)
        span = K * rnd.lr
        w = averaged(w, sent, h)
        D = each(lambda p, span=span: p / span, mean(drifts, h))
        yield {"w": w, "D": D}


def mofedsam(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    yield from fedcm(loss_grad, w0, rounds, m, h, rho=h["rho"])


def fedlesam(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Fan et al., ICML 2024, Algorithm 1: w_old_i is the global model client i received when it last took part.

    At its first contact w_old_i is the model just received, so its perturbation is zero.
    """
    w, w_old, last = w0, {}, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            e = unit(each(lambda a, b: a - b, w_old.get(i, w), w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(each(lambda p, q: p + h["rho"] * q, w_i, e), batch)
                w_i = descend(w_i, g, None, rnd.lr, h)
            w_old[i], last[i], sent[i] = w, w_i, w_i
        w = averaged(w, sent, h)
        yield {"w": w, "w_old": dict(w_old)}


def fedlesam_s(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """FedLESAM on SCAFFOLD: the same perturbation, SCAFFOLD's corrections and server."""
    w, c, c_i, w_old, last = w0, zeros(w0), {}, {}, {}
    for rnd in rounds:
        sent, changes = {}, {}
        for i in rnd.cohort:
            e = unit(each(lambda a, b: a - b, w_old.get(i, w), w))
            mine = c_i.get(i, zeros(w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(each(lambda p, q: p + h["rho"] * q, w_i, e), batch)
                d = each(lambda a, b, f: a - b + f, g, mine, c)
                w_i = descend(w_i, d, None, rnd.lr, h)
            span = len(rnd.batches[i]) * rnd.lr
            new = each(lambda a, b, p, q, span=span: a - b + (p - q) / span, mine, c, w, w_i)
            changes[i] = each(lambda a, b: a - b, new, mine)
            c_i[i], w_old[i], last[i], sent[i] = new, w, w_i, w_i
        w = averaged(w, sent, h)
        share = len(rnd.cohort) / m
        c = each(lambda a, b, share=share: a + share * b, c, mean(changes, h))
        yield {"w": w, "c": c, "c_i": dict(c_i), "w_old": dict(w_old)}
