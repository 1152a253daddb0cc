"""Boxes that give every client a model, or a part of one, of its own: pFedMe, Ditto, FedPer,
FedRep, FedBN."""

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


def ditto(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Li et al., ICML 2021, Algorithm 1: FedAvg, and v_i <- v_i - lr (g(v_i) + lam (v_i - w)), on the same batches.

    v_i begins at the first global model that its client receives. Its steps have neither clip nor decay.
    """
    w, own, last = w0, {}, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            v = own.get(i, w)
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(v, batch)
                v = each(lambda a, b, c, lr=rnd.lr: a - lr * (b + h["lam"] * (a - c)), v, g, w)
            for batch in rnd.batches[i]:
                w_i = descend(w_i, loss_grad(w_i, batch), None, rnd.lr, h)
            last[i], sent[i], own[i] = w_i, w_i, v
        w = averaged(w, sent, h)
        yield {"w": w, "v": dict(own)}


def fedper(
    loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper, head_share: float | None = None
) -> Iterator[dict[str, Any]]:
    """FedPer (Arivazhagan et al., 2019), and with ``head_share`` FedRep (Collins et al., ICML 2021, Algorithm 1).

    The head is the last layer. A client begins with the global body and its own head, which is the first one of the
    run until it has trained. FedRep's clients train the head alone in their first steps, and the body alone after it.
    The server's head is never touched. A relaxed start goes past that model, and so leaves the head where it ended.
    """
    layer = list(w0)[-1].rpartition(".")[0]
    head = [name for name in w0 if name.rpartition(".")[0] == layer]
    w, own = w0, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            mine = w | {name: own.get(i, w0)[name] for name in head}
            w_i = start(mine, own.get(i, mine), h)
            K = len(rnd.batches[i])
            for k, batch in enumerate(rnd.batches[i]):
                g = loss_grad(w_i, batch)
                if head_share is None:
                    w_i = descend(w_i, g, None, rnd.lr, h)
                    continue
                moving = [name for name in w0 if (name in head) == (k < head_share * K)]
                new = descend(w_i, {name: g[name] if name in moving else 0 * g[name] for name in w0}, None, rnd.lr, h)
                w_i = w_i | {name: new[name] for name in moving}
            own[i] = w_i
            sent[i] = w_i
        body = averaged(w, sent, h)
        w = {name: w[name] if name in head else body[name] for name in w0}
        yield {"w": w, "own": dict(own)}


def fedrep(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    yield from fedper(loss_grad, w0, rounds, m, h, head_share=h["head_share"])


def fedbn(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """FedBN (Li et al., ICLR 2021, Algorithm 1): "if layer l is not BatchNorm", clients' layers are averaged.

    All others a client keeps for itself; they are the first ones of the run until it has trained.
    """
    norms = [layer for layer in w0 if "norm" in layer]
    assert norms
    w, own = w0, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            mine = {layer: own.get(i, w0)[layer] if layer in norms else w[layer] for layer in w0}
            w_i = start(mine, own.get(i, mine), h)
            for batch in rnd.batches[i]:
                w_i = descend(w_i, loss_grad(w_i, batch), None, rnd.lr, h)
            own[i] = sent[i] = w_i
        mean = averaged(w, sent, h)
        w = {layer: w0[layer] if layer in norms else mean[layer] for layer in w0}
        yield {"w": w, "own": dict(own)}
