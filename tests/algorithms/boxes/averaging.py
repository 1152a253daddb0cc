"""Boxes whose clients keep nothing and send one model: FedAvg, FedProx, FedSAM, and the adaptive servers.

Every box is a generator: it yields its whole state after every round, the global model under ``"w"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, sam_gradient, start, zeros


def fedavg(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """McMahan et al., AISTATS 2017, Algorithm 1, with a server learning rate and an unweighted mean."""
    w, last = w0, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                w_i = descend(w_i, g, None, rnd.lr, h)
            last[i] = w_i
            sent[i] = w_i
        w = averaged(w, sent, h)
        yield {"w": w}


def averaged(w: Model, sent: dict[int, Model], h: Hyper) -> Model:
    """w + lr_server * mean(w_i - w): the server of FedAvg and of all that share it."""
    delta = mean({i: each(lambda a, b: a - b, w_i, w) for i, w_i in sent.items()}, h)
    return each(lambda p, q: p + h.get("lr_server", 1.0) * q, w, delta)


def fedprox(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Li et al., MLSys 2020, Algorithm 2, its inexact local solution being K steps on f_i + mu/2 ||w_i - w||^2."""
    w, last = w0, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                prox = each(lambda a, b: h["mu"] * (a - b), w_i, w)
                w_i = descend(w_i, g, prox, rnd.lr, h)
            last[i] = w_i
            sent[i] = w_i
        w = averaged(w, sent, h)
        yield {"w": w}


def fedsam(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Qu et al., ICML 2022: FedAvg whose local optimiser is SAM."""
    w, last = w0, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g_tilde = sam_gradient(loss_grad, w_i, batch, h["rho"])
                w_i = descend(w_i, g_tilde, None, rnd.lr, h)
            last[i] = w_i
            sent[i] = w_i
        w = averaged(w, sent, h)
        yield {"w": w}


def fedopt(
    kind: str, loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper
) -> Iterator[dict[str, Any]]:
    """FedAvgM (Hsu et al. 2019) and Reddi et al., ICLR 2021, Algorithm 2: FedAdagrad, FedYogi, FedAdam.

    In the published box the first moment is ``m_t = b1 m_{t-1} + (1 - b1) Delta_t`` for all three, the second moment is
    fed by Delta_t itself and not by m_t, v_{-1} = tau^2, and nothing is corrected for its bias. FedAdagrad has b1 like
    the others; 0 makes it plain Adagrad. FedAvgM's momentum is the heavy ball of SGD:
    ``p = b1 p + Delta`` without the factor (1 - b1).
    """
    w, last = w0, {}
    b1, b2, p = h["beta1"], h.get("beta2"), zeros(w0)
    v = each(lambda q: q * 0.0 + h["tau"] ** 2, w0) if kind != "momentum" else None
    for rnd in rounds:
        deltas = {}
        for i in rnd.cohort:
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                w_i = descend(w_i, g, None, rnd.lr, h)
            last[i] = w_i
            deltas[i] = each(lambda a, b: a - b, w_i, w)
        D = mean(deltas, h)
        if kind == "momentum":
            p = each(lambda a, d: b1 * a + d, p, D)
            w = each(lambda a, q: a + h["lr_server"] * q, w, p)
            yield {"w": w, "p": p}
            continue
        p = each(lambda a, d: b1 * a + (1 - b1) * d, p, D)
        if kind == "adagrad":
            v = each(lambda a, d: a + d**2, v, D)
        elif kind == "yogi":
            v = each(lambda a, d: a - (1 - b2) * d**2 * torch.sign(a - d**2), v, D)
        else:
            v = each(lambda a, d: b2 * a + (1 - b2) * d**2, v, D)
        w = each(lambda a, q, s: a + h["lr_server"] * q / (torch.sqrt(s) + h["tau"]), w, p, v)
        yield {"w": w, "p": p, "v": v}
