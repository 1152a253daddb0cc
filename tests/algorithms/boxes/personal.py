"""Boxes that give every client a model of its own: pFedMe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .averaging import averaged
from .layers import Hyper, LossGrad, Model, Round, descend, each, start


def pfedme(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Dinh et al., NeurIPS 2020, Algorithm 1, its argmin of f_i(t) + lam/2 ||t - w_i||^2 being a few steps.

    These go on from one batch to the next and begin at w in every round, as in the released code. The server's beta is
    lr_server: (1 - beta) w + beta mean(w_i).
    """
    w, theta, last = w0, {}, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            t = w
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                for _ in range(h["steps_own"]):
                    g = loss_grad(t, batch)
                    t = each(lambda a, b, c: a - h["lr_own"] * (b + h["lam"] * (a - c)), t, g, w_i)
                d = each(lambda a, b: h["lam"] * (a - b), w_i, t)
                w_i = descend(w_i, d, None, rnd.lr, h)
            last[i], sent[i], theta[i] = w_i, w_i, t
        w = averaged(w, sent, h)
        yield {"w": w, "theta": dict(theta)}
