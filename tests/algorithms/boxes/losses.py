"""Boxes whose clients descend a loss of their own: FedLC, FedNTD, FedGMT, MOON; and q-FedAvg.

Losses are written sample by sample and class by class, from outputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .averaging import averaged
from .layers import Hyper, LossGrad, Model, Round, descend, each, mean, norm, start, zeros
from .servers import local_models, shares

OwnLoss = Callable[[Tensor, Tensor], Tensor]


def log_softmax(row: list[Tensor]) -> list[Tensor]:
    top = torch.stack(row).max().detach()
    total = sum(torch.exp(v - top) for v in row)
    return [v - top - torch.log(total) for v in row]


def cross_entropy(row: Tensor, label: int) -> Tensor:
    return -log_softmax(list(row))[label]


def divergence(teacher: list[Tensor], student: list[Tensor]) -> Tensor:
    """KL(softmax(teacher) || softmax(student)), of outputs that are divided by their temperature already."""
    p, q = log_softmax(teacher), log_softmax(student)
    return sum(torch.exp(a) * (a - b) for a, b in zip(p, q, strict=True))


def over_batch(each_loss: Callable[[int, Tensor, int], Tensor]) -> OwnLoss:
    """The mean over a batch of a loss of (its place in the batch, outputs, label)."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return sum(each_loss(b, out[b], int(y[b])) for b in range(len(y))) / len(y)

    return loss


def with_loss(
    made: Callable[[LossGrad, Model, int, Any], OwnLoss],
    loss_grad: LossGrad,
    w0: Model,
    rounds: list[Round],
    h: Hyper,
) -> Iterator[dict[str, Any]]:
    """FedAvg with a loss that is made of the global model, the client and the batch."""
    w, last = w0, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                g = loss_grad(w_i, batch, made(loss_grad, w, i, batch))
                w_i = descend(w_i, g, None, rnd.lr, h)
            last[i], sent[i] = w_i, w_i
        w = averaged(w, sent, h)
        yield {"w": w}


def fedntd(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Lee et al., NeurIPS 2022: CE + beta tau^2 KL over the classes that are not true, from the global model."""
    beta, tau = h["beta"], h["tau"]

    def made(loss_grad: LossGrad, w: Model, i: int, batch: Any) -> OwnLoss:
        teacher = loss_grad.outputs(w, batch)  # type: ignore[attr-defined]

        def one(b: int, row: Tensor, label: int) -> Tensor:
            others = [c for c in range(len(row)) if c != label]
            kl = divergence([teacher[b][c] / tau for c in others], [row[c] / tau for c in others])
            return cross_entropy(row, label) + beta * tau**2 * kl

        return over_batch(one)

    yield from with_loss(made, loss_grad, w0, rounds, h)


def fedlc(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Zhang et al., ICML 2022: -log of exp(f_y - tau n_y^(-1/4)) / sum_c exp(f_c - tau n_c^(-1/4)).

    The sum is over all classes, as others implement it; the paper's leaves y out, which has no lower bound.
    ``h["labels"][i][c]`` is how many samples of class c client i holds; a class without any counts as 1e-8 of one.
    """

    def made(loss_grad: LossGrad, w: Model, i: int, batch: Any) -> OwnLoss:
        margin = [h["tau"] * max(n, 1e-8) ** -0.25 for n in h["labels"][i]]

        def one(b: int, row: Tensor, label: int) -> Tensor:
            return -log_softmax([v - margin[c] for c, v in enumerate(row)])[label]

        return over_batch(one)

    yield from with_loss(made, loss_grad, w0, rounds, h)


def fedgmt(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Li et al., ICML 2025, as released: CE + gamma tau^2 KL from the outputs of e, and the linear term of a dual.

    The released dual is the sum of a client's updates, u_i; the loss has + <w_i, u_i> / beta, and the server adds the
    mean of u over all m clients to the mean model. e is averaged with the new global model after every round.
    """
    w, e, u, held, last = w0, w0, {}, zeros(w0), {}
    beta, tau = h["beta"], h["tau"]
    for rnd in rounds:
        sent, moved = {}, {}
        for i in rnd.cohort:
            mine = u.get(i, zeros(w))
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                teacher = loss_grad.outputs(e, batch)  # type: ignore[attr-defined]

                def one(b: int, row: Tensor, label: int, teacher: Tensor = teacher) -> Tensor:
                    kl = divergence([v / tau for v in teacher[b]], [v / tau for v in row])
                    return cross_entropy(row, label) + h["gamma"] * tau**2 * kl

                g = loss_grad(w_i, batch, over_batch(one))
                w_i = descend(w_i, each(lambda a, b: a + b / beta, g, mine), None, rnd.lr, h)
            moved[i] = each(lambda a, b: a - b, w_i, w)
            u[i] = each(lambda a, b: a + b, mine, moved[i])
            last[i], sent[i] = w_i, w_i
        share = len(rnd.cohort) / m
        held = each(lambda a, b, share=share: a + share * b, held, mean(moved, h))
        if h.get("weights") is None:  # literally: the updates of all m clients, over m
            held = {name: sum(v[name] for v in u.values()) / m for name in w}
        w = each(lambda a, b: a + b, mean(sent, h), held)
        e = each(lambda a, b: h["alpha"] * a + (1 - h["alpha"]) * b, e, w)
        yield {"w": w, "e": e, "u": dict(u)}


def moon(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Li et al., CVPR 2021, Algorithm 1: CE - mu log(exp(sim(z, z_glob)/tau) / (exp(...glob) + exp(...prev))).

    z are the features before the last layer; a client that was never met has the global model as its previous one.
    """

    def cosine(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())

    w, previous, last = w0, {}, {}
    for rnd in rounds:
        sent = {}
        for i in rnd.cohort:
            before = previous.get(i, w)
            w_i = start(w, last.get(i, w), h)
            for batch in rnd.batches[i]:
                near, far = (loss_grad.features(v, batch) for v in (w, before))  # type: ignore[attr-defined]

                def loss(out: Any, y: Tensor, near: Tensor = near, far: Tensor = far) -> Tensor:
                    rows, z = out
                    total = 0.0
                    for b in range(len(y)):
                        e = [torch.exp(cosine(z[b], v[b]) / h["tau"]) for v in (near, far)]
                        total = total + cross_entropy(rows[b], int(y[b])) - h["mu"] * torch.log(e[0] / (e[0] + e[1]))
                    return total / len(y)

                g = loss_grad(w_i, batch, loss, True)
                w_i = descend(w_i, g, None, rnd.lr, h)
            last[i], sent[i], previous[i] = w_i, w_i, w_i
        w = averaged(w, sent, h)
        yield {"w": w}


def qfedavg(loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, h: Hyper) -> Iterator[dict[str, Any]]:
    """Li et al., ICLR 2020, Algorithm 2, with L = 1/lr; ``h["loss_of"](w, i)`` is client i's loss over all its samples.

    Weights, if any, multiply each client's Delta and h alike.
    """
    w, last, q = w0, {}, h["q"]
    for rnd in rounds:
        p = shares(rnd.cohort, h)
        top, bottom = zeros(w), 0.0
        for i, w_i in local_models(loss_grad, w, rnd, last, h).items():
            F = h["loss_of"](w, i) + 1e-10
            delta = each(lambda a, b, lr=rnd.lr: (a - b) / lr, w, w_i)
            top = each(lambda a, b, f=p[i] * F**q: a + f * b, top, delta)
            bottom = bottom + p[i] * (q * F ** (q - 1) * norm(delta) ** 2 + F**q / rnd.lr)
        w = each(lambda a, b, bottom=bottom: a - b / bottom, w, top)
        yield {"w": w}
