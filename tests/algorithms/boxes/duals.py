"""Boxes with a dual variable per client: FedDyn, FedSMOO, FedSpeed, FedLESAM-D, FedGloSS.

The sign of lam_i is FedSMOO's: the local objective is f_i(w_i) - <lam_i, w_i> + ||w_i - w||^2 / (2 beta).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, sam_gradient, start, unit, zeros


def dual_server(w: Model, lam: Model, sent: dict[int, Model], m: int, h: Hyper) -> tuple[Model, Model]:
    """Lines 18 and 19 of FedSMOO's box: lam - (1/(beta m)) sum(w_i - w), then mean(w_i) - beta lam."""
    beta, share = h["beta"], len(sent) / m
    drift = mean({i: each(lambda a, b: a - b, w_i, w) for i, w_i in sent.items()}, h)
    lam = each(lambda a, b: a - share * b / beta, lam, drift)
    w = each(lambda a, b: a - beta * b, mean(sent, h), lam)
    return w, lam


def feddyn(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Acar et al., ICLR 2021, Algorithm 1, its alpha being 1/beta and its local argmin K steps of SGD.

    The paper's exact argmin makes the local gradient there equal to the new lam_i, so updating lam_i by the drift and
    setting it to that gradient are the same; with K steps the drift is what the box's line says.
    """
    w, lam, lam_i, last = w0, zeros(w0), {}, {}
    beta = h["beta"]
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            mine = lam_i.get(i, zeros(w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)
                d = each(lambda a, b: a - b, g, mine)
                prox = each(lambda a, b: (a - b) / beta, w_i, w)
                w_i = descend(w_i, d, prox, rnd.lr, h)
            lam_i[i] = each(lambda a, p, q: a - (p - q) / beta, mine, w_i, w)
            last[i], sent[i] = w_i, w_i
        w, lam = dual_server(w, lam, sent, m, h)
        yield {"w": w, "lam": lam, "lam_i": dict(lam_i)}


def fedsmoo(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Sun et al., ICML 2023, Algorithm 1, line numbers in the comments; the switches are the paper's ablation.

    ``regularise`` off: no lam, no proximal term, the server takes the mean. ``sam`` off: the plain gradient, hence no
    mu and no s. ``correct`` off: FedSAM's own perturbation r g / ||g||; mu and s stay zero.
    ``perturbation = "released"`` is the authors' code, which normalises mean(mu_i) and drops ``- s_hat`` in line 13.
    """
    regularise, sam, correct = h.get("regularise", True), h.get("sam", True), h.get("correct", True)
    released = {"paper": False, "released": True}[h.get("perturbation", "paper")]
    w, s, lam = w0, zeros(w0), zeros(w0)
    lam_i, mu_i, last = {}, {}, {}
    r, beta = h["r"], h["beta"]
    for rnd in rounds:
        sent, tilde = {}, {}
        for i in rnd.cohort:
            lam_mine, mu, s_hat = lam_i.get(i, zeros(w)), mu_i.get(i, zeros(w)), zeros(w)
            w_i = start(w, last.get(i, w), h)  # line 5
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch)  # line 7
                if sam and correct:
                    s_hat = unit(each(lambda a, b, c: (a - b) - c, g, mu, s))  # line 8
                    s_hat = each(lambda a: r * a, s_hat)
                    mu = each(lambda a, b, c: a + (b - c), mu, s_hat, s)  # line 9
                elif sam:
                    s_hat = each(lambda a: r * a, unit(g))
                if sam:
                    g = loss_grad(each(lambda a, b: a + b, w_i, s_hat), batch)  # line 10
                d, prox = g, None
                if regularise:
                    d = each(lambda a, b: a - b, g, lam_mine)
                    prox = each(lambda a, b: (a - b) / beta, w_i, w)
                w_i = descend(w_i, d, prox, rnd.lr, h)  # line 11
            # Line 13 writes s_hat_{i,K} although the last one computed is s_hat_{i,K-1}: that one is meant.
            tilde[i] = mu if released else each(lambda a, b: a - b, mu, s_hat)
            if regularise:
                lam_i[i] = each(lambda a, p, q: a - (p - q) / beta, lam_mine, w_i, w)  # line 14
            mu_i[i], last[i], sent[i] = mu, w_i, w_i  # line 15
        if sam and correct:
            s = each(lambda a: r * a, unit(mean(tilde, h)))  # line 17
        if regularise:
            w, lam = dual_server(w, lam, sent, m, h)  # lines 18, 19
        else:
            w = mean(sent, h)
        yield {"w": w, "s": s, "lam": lam, "lam_i": dict(lam_i), "mu_i": dict(mu_i)}


def fedspeed(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Sun et al., ICLR 2023, Algorithm 1 (its lambda is our beta, its g_hat_i our lam_i).

    Paper: the extra step is rho times the raw gradient, not a unit vector; the quasi-gradient mixes both gradients
    with alpha; a client sends the amended model w_i - beta lam_i with the *new* lam_i; the server takes the mean of
    those and keeps nothing. Released: alpha = 1, a unit gradient, w_i is sent, and the server is FedDyn's.
    """
    released = {"paper": False, "released": True}[h.get("form", "paper")]
    w, lam, lam_i, last = w0, zeros(w0), {}, {}
    beta, rho, a = h["beta"], h["rho"], h["alpha"]
    for rnd in rounds:
        sent, amended = {}, {}
        for i in rnd.cohort:
            mine = lam_i.get(i, zeros(w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g1 = loss_grad(w_i, batch)
                e = unit(g1) if released else g1
                g2 = loss_grad(each(lambda p, q: p + rho * q, w_i, e), batch)
                quasi = g2 if released else each(lambda p, q: (1 - a) * p + a * q, g1, g2)
                d = each(lambda p, q: p - q, quasi, mine)
                prox = each(lambda p, q: (p - q) / beta, w_i, w)
                w_i = descend(w_i, d, prox, rnd.lr, h)
            lam_i[i] = each(lambda b, p, q: b - (p - q) / beta, mine, w_i, w)
            amended[i] = each(lambda p, q: p - beta * q, w_i, lam_i[i])
            last[i], sent[i] = w_i, w_i
        if released:
            w, lam = dual_server(w, lam, sent, m, h)
        else:
            w = mean(amended, h)
        yield {"w": w, "lam": lam, "lam_i": dict(lam_i)}


def fedlesam_d(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """FedLESAM (Fan et al., ICML 2024) on FedDyn: its perturbation, FedDyn's duals and server."""
    w, lam, lam_i, w_old, last = w0, zeros(w0), {}, {}, {}
    beta = h["beta"]
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            e = unit(each(lambda a, b: a - b, w_old.get(i, w), w))
            mine = lam_i.get(i, zeros(w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(each(lambda p, q: p + h["rho"] * q, w_i, e), batch)
                d = each(lambda a, b: a - b, g, mine)
                prox = each(lambda a, b: (a - b) / beta, w_i, w)
                w_i = descend(w_i, d, prox, rnd.lr, h)
            lam_i[i] = each(lambda a, p, q: a - (p - q) / beta, mine, w_i, w)
            w_old[i], last[i], sent[i] = w, w_i, w_i
        w, lam = dual_server(w, lam, sent, m, h)
        yield {"w": w, "lam": lam, "lam_i": dict(lam_i), "w_old": dict(w_old)}


def fedgloss(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Caldarola et al., CVPR 2025, its sigma being our lam: the server perturbs w along the last pseudo-gradient.

    Clients solve FedDyn's problem around the perturbed model, by SAM. The server measures updates from the perturbed
    model, applies them to the one without, and subtracts beta lam. ``dual = "released"`` divides the sum of the updates
    by m and by n, where their sum over m is meant.
    """
    w, lam, lam_i, last, pseudo = w0, zeros(w0), {}, {}, None
    beta = h["beta"]
    for rnd in rounds:
        e = zeros(w) if pseudo is None else unit(pseudo)
        v = each(lambda a, b: a + h["rho_server"] * b, w, e)
        deltas = {}
        for i in rnd.cohort:
            mine = lam_i.get(i, zeros(w))
            w_i = start(v, last.get(i, v), h)
            for batch in rnd.batches[i]:
                g = sam_gradient(loss_grad, w_i, batch, h["rho"])
                d = each(lambda a, b: a - b, g, mine)
                prox = each(lambda a, b: (a - b) / beta, w_i, v)
                w_i = descend(w_i, d, prox, rnd.lr, h)
            deltas[i] = each(lambda a, b: a - b, w_i, v)
            lam_i[i] = each(lambda a, b: a - b / beta, mine, deltas[i])
            last[i] = w_i
        delta, n = mean(deltas, h), len(rnd.cohort)
        factor = n / m / beta / (n if h.get("dual") == "released" else 1)
        lam = each(lambda a, b, factor=factor: a - factor * b, lam, delta)
        w = each(lambda a, b, c: a + b - beta * c, w, delta, lam)
        pseudo = each(lambda a: -a, delta)
        yield {"w": w, "lam": lam, "lam_i": dict(lam_i)}
