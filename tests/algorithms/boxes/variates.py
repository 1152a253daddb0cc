"""Boxes with control variates or a shared momentum: SCAFFOLD, FedGamma, FedLESAM-S; FedCM, MoFedSAM;
FedLESAM; FedWMSAM; FedSWA, FedMoSWA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .averaging import averaged
from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, norm, sam_gradient, start, unit, zeros


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


def fedwmsam(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Li et al., NeurIPS 2025, from the formulas in its repository's description, and its code for the rest.

    The personal momentum is Delta_i = Delta + alpha/(1 - alpha) (c - c_i); the gradient is taken towards x + b Delta_i
    from the local model (``form = "released"``: away from it); SCAFFOLD's c; alpha follows the mean over the cohort of
    1 + cos(update, Delta), 0 while there is no Delta, held between 0.1 and 0.9; it has the weights of the models' mean.
    """
    w, D, c, alpha, c_i, last = w0, zeros(w0), zeros(w0), h["alpha"], {}, {}
    sign = {"paper": 1.0, "released": -1.0}[h.get("form", "paper")]
    for rnd in rounds:
        sent, changes, turns = {}, {}, {}
        for i in rnd.cohort:
            mine = c_i.get(i, zeros(w))
            personal = each(lambda a, b, q, alpha=alpha: a + alpha / (1 - alpha) * (b - q), D, c, mine)
            target = w
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                e = unit(each(lambda a, b: a - b, target, w_i))
                g = loss_grad(each(lambda a, b: a + sign * h["rho"] * b, w_i, e), batch)
                d = each(lambda a, b, alpha=alpha: alpha * a + (1 - alpha) * b, g, personal)
                w_i = descend(w_i, d, None, rnd.lr, h)
                target = each(lambda a, b: a + b, target, personal)
            span = len(rnd.batches[i]) * rnd.lr
            new = each(lambda a, b, p, q, span=span: a - b + (p - q) / span, mine, c, w, w_i)
            changes[i] = each(lambda a, b: a - b, new, mine)
            u = each(lambda a, b: a - b, w_i, w)
            dot = sum(float((u[name] * D[name]).sum()) for name in u)
            turns[i] = 1 + dot / (norm(u) * norm(D)) if norm(u) * norm(D) > 0 else 0.0
            c_i[i], last[i], sent[i] = new, w_i, w_i
        p = h.get("weights") or dict.fromkeys(rnd.cohort, 1.0)
        total = sum(p[i] for i in rnd.cohort)
        K = sum(p[i] * len(rnd.batches[i]) for i in rnd.cohort) / total
        turn = sum(p[i] * turns[i] for i in rnd.cohort) / total
        D = each(lambda a, b, span=K * rnd.lr: (a - b) / span, w, mean(sent, h))
        share = len(rnd.cohort) / m
        c = each(lambda a, b, share=share: a + share * b, c, mean(changes, h))
        w = averaged(w, sent, h)
        alpha = 0.99 * alpha + 0.01 * max(0.1, min(turn, 0.9))
        yield {"w": w, "D": D, "c": c, "c_i": dict(c_i), "alpha": alpha}


def fedswa(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Liu et al., ICML 2025: before local step k of K the learning rate is (1 - k/K) lr + (k/K) rho lr."""
    w, last = w0, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            w_i, K = start(w, last.get(i, w), h), len(rnd.batches[i])
            for k, batch in enumerate(rnd.batches[i]):
                lr = (1 - k / K) * rnd.lr + k / K * h["rho"] * rnd.lr
                w_i = descend(w_i, loss_grad(w_i, batch), None, lr, h)
            last[i], sent[i] = w_i, w_i
        w = averaged(w, sent, h)
        yield {"w": w}


def fedmoswa(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Liu et al., ICML 2025: FedSWA with SCAFFOLD's corrections; c_i's span has the mean of the first and last rate.

    What is sent is the new c_i less c, and c moves by gamma times its mean, whatever share of the clients takes part.
    """
    w, c, c_i, last = w0, zeros(w0), {}, {}
    for rnd in rounds:
        sent, gaps = {}, {}
        for i in rnd.cohort:
            w_i, K, mine = start(w, last.get(i, w), h), len(rnd.batches[i]), c_i.get(i, zeros(w))
            for k, batch in enumerate(rnd.batches[i]):
                lr = (1 - k / K) * rnd.lr + k / K * h["rho"] * rnd.lr
                d = each(lambda a, b, e: a - b + e, loss_grad(w_i, batch), mine, c)
                w_i = descend(w_i, d, None, lr, h)
            span = K * (rnd.lr + h["rho"] * rnd.lr) / 2
            c_i[i] = each(lambda p, q, a, b, span=span: (p - q) / span + a - b, w, w_i, mine, c)
            gaps[i] = each(lambda a, b: a - b, c_i[i], c)
            last[i], sent[i] = w_i, w_i
        w = averaged(w, sent, h)
        c = each(lambda a, b: a + h["gamma"] * b, c, mean(gaps, h))
        yield {"w": w, "c": c, "c_i": dict(c_i)}
