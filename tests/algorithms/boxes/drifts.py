"""Boxes that remember how far clients drifted: FedDC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, start, zeros


def feddc(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Gao et al., CVPR 2022, Algorithm 1: the local objective is

        f_i(w_i) + alpha/2 ||h_i + w_i - w||^2 + <w_i, g_i - g> / (K lr)

    with g_i the client's last update, w_i - w, and g the mean of the last round's. g_i / (K lr) is kept as it was when
    that update was made, with its own K and lr. Then h_i <- h_i + (w_i - w), and w is the mean of w_i + h_i.

    ``form = "released"``: a state s_i <- s_i - s + (w - w_i) / (K lr) as SCAFFOLD's, s its mean over all m clients
    (those never met at zero), and a server that adds the mean drift of all m clients to the mean model of the cohort.
    """
    released = {"paper": False, "released": True}[h.get("form", "released")]
    w, alpha, drift, pace, last = w0, h["alpha"], {}, {}, {}
    g_mean, held = zeros(w0), zeros(w0)  # g_mean, as pace[i], is minus a mean gradient per step
    for rnd in rounds:
        sent = {}
        before = dict(pace)
        for i in rnd.cohort:
            h_i, g_i = drift.get(i, zeros(w)), pace.get(i, zeros(w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                penalty = each(lambda a, b, c: alpha * (b + a - c), w_i, h_i, w)
                linear = each(lambda a, b: a - b, g_i, g_mean)
                w_i = descend(w_i, each(lambda a, b, c: a + b + c, g, penalty, linear), None, rnd.lr, h)
            K = len(rnd.batches[i])
            fresh = each(lambda a, b, K=K, lr=rnd.lr: (a - b) / (K * lr), w_i, w)
            pace[i] = each(lambda a, b, c: a - b + c, g_i, g_mean, fresh) if released else fresh
            drift[i] = each(lambda a, b, c: a + (b - c), h_i, w_i, w)
            last[i], sent[i] = w_i, w_i
        if released:
            share = len(rnd.cohort) / m
            nothing = zeros(w)
            change = {i: each(lambda a, b: a - b, pace[i], before.get(i, nothing)) for i in rnd.cohort}
            g_mean = each(lambda a, b, share=share: a + share * b, g_mean, mean(change, h))
            moved = mean({i: each(lambda a, b: a - b, sent[i], w) for i in rnd.cohort}, h)
            held = each(lambda a, b, share=share: a + share * b, held, moved)
            if h.get("weights") is None:  # literally: the drifts of all m clients, over m
                held = {name: sum(v[name] for v in drift.values()) / m for name in w}
            w = each(lambda a, b: a + b, mean(sent, h), held)
        else:
            g_mean = mean({i: pace[i] for i in rnd.cohort}, h)
            w = mean({i: each(lambda a, b: a + b, sent[i], drift[i]) for i in rnd.cohort}, h)
        yield {"w": w, "h_i": dict(drift), "g_i": dict(pace)}
