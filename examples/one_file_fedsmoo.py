"""FedSMOO (Sun et al., ICML 2023, Algorithm 1) in one file: its box and a plain loop, no engine.

It trains softmax regression on scikit-learn's digits twice, by the loop below and by the package, and says how far the
two models are apart: rounding. Run it with ``python examples/one_file_fedsmoo.py``.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from fedsmoo import FedSMOO, simulate, stream

M, N, ROUNDS, BATCH, LR, R, BETA, SEED = 10, 3, 20, 32, 0.1, 0.1, 10.0, 0

x, y = load_digits(return_X_y=True)
x, y = torch.from_numpy(x / 16), torch.from_numpy(y)
train, test = slice(0, 1400), slice(1400, None)
rows = np.array_split(np.argsort(y[train].numpy(), kind="stable"), M)  # client i's samples: one class or two


def grad(w, batch):
    """The gradient of the mean loss of a batch, for the weights [10, 64] and biases [10] in one flat vector."""
    w = w.detach().requires_grad_()
    loss = F.cross_entropy(x[batch] @ w[:640].view(10, 64).T + w[640:], y[batch])
    return torch.autograd.grad(loss, w)[0]


def unit(v):
    return v / (v.norm() + 1e-12)  # the zero vector stays zero


def fedsmoo(w):
    """The box: on each client K steps at a perturbation that all agree on, held together by two dual variables."""
    lam, s, mu_i, lam_i = torch.zeros_like(w), torch.zeros_like(w), {}, {}
    for t in range(ROUNDS):
        ends, s_tilde = [], []
        for i in sorted(stream(SEED, "cohort", t).choice(M, N, replace=False, shuffle=False)):
            mu, dual, v = mu_i.get(i, 0 * w), lam_i.get(i, 0 * w), w
            order = stream(SEED, "batches", t, i).permutation(rows[i])
            for batch in np.split(order, range(BATCH, len(order), BATCH)):
                s_hat = R * unit(grad(v, batch) - mu - s)
                mu = mu + s_hat - s
                v = v - LR * (grad(v + s_hat, batch) - dual + (v - w) / BETA)
            mu_i[i], lam_i[i] = mu, dual - (v - w) / BETA
            ends.append(v)
            s_tilde.append(mu - s_hat)
        s = R * unit(sum(s_tilde) / N)
        lam = lam - (N / M) * (sum(ends) / N - w) / BETA
        w = sum(ends) / N - BETA * lam
    return w


def main():
    torch.manual_seed(SEED)
    model = nn.Linear(64, 10).double()
    ours = simulate(
        model, (x[train], y[train], x[test], y[test]), FedSMOO(r=R, beta=BETA), client_indices=rows, cohort=N,
        rounds=ROUNDS, local_epochs=1, batch_size=BATCH, lr=LR, lr_decay=1.0, weight_decay=0.0, clip=None, seed=SEED,
        engine="serial", dtype="float64", device="cpu",
    )  # fmt: skip
    by_hand = fedsmoo(nn.utils.parameters_to_vector(model.parameters()).detach())
    apart = (by_hand - nn.utils.parameters_to_vector(ours.model.parameters())).abs().max().item()
    print(f"accuracy {ours.accuracy:.4f} after {ROUNDS} rounds; the plain loop's model is {apart:.1e} away")
    return apart


if __name__ == "__main__":
    main()
