"""Boxes whose server sends another model than the one it keeps: FedACG and FedNSAM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, sam_gradient, start, zeros


def fedacg(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Kim et al., CVPR 2024, Algorithm 1: v = w + lam m is broadcast; the local loss has mu/2 ||w_i - v||^2.

    Delta is measured from v, and the server's model is w + (lam m + Delta): the mean of the local models.
    """
    w, momentum, last, lam = w0, zeros(w0), {}, h["lam"]
    for rnd in rounds:
        v = each(lambda a, b: a + lam * b, w, momentum)
        deltas, sent = {}, {}
        for i in rnd.cohort:
            w_i = start(v, last.get(i, v), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                prox = each(lambda a, b: h["mu"] * (a - b), w_i, v)
                w_i = descend(w_i, g, prox, rnd.lr, h)
            last[i], sent[i] = w_i, w_i
            deltas[i] = each(lambda a, b: a - b, w_i, v)
        delta = mean(deltas, h)
        momentum = each(lambda a, d: lam * a + d, momentum, delta)
        w = mean(sent, h)
        yield {"w": w, "m": momentum}


def fednsam(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Liu et al., ACM MM 2025, as released: FedSAM from w + lam m, and a momentum of what clients add to that.

    ``form = "released"``: the sum of the loop is read where the momentum should be, so that m is Delta in the first
    round and lam Delta + Delta ever after.
    """
    released = {"accumulated": False, "released": True}[h.get("form", "accumulated")]
    w, momentum, last, lam = w0, None, {}, h["lam"]
    for rnd in rounds:
        v = w if momentum is None else each(lambda a, b: a + lam * b, w, momentum)
        deltas = {}
        for i in rnd.cohort:
            w_i = start(v, last.get(i, v), h)
            for batch in rnd.batches[i]:
                g = sam_gradient(loss_grad, w_i, batch, h["rho"])
                w_i = descend(w_i, g, None, rnd.lr, h)
            last[i] = w_i
            deltas[i] = each(lambda a, b: a - b, w_i, v)
        delta = mean(deltas, h)
        if momentum is None:
            momentum = delta
        elif released:
            momentum = each(lambda d: lam * d + d, delta)
        else:
            momentum = each(lambda a, d: lam * a + d, momentum, delta)
        w = each(lambda a, b: a + b, w, momentum)
        yield {"w": w, "m": momentum}
