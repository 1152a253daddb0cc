"""Synthetic(alpha, beta): logistic data whose clients differ in their models (alpha) and in their features (beta).

Client i, with 60 features and 10 classes:

    u_i ~ N(0, alpha)      W_i, b_i ~ N(u_i, 1)
    B_i ~ N(0, beta)       v_i ~ N(B_i, 1)        x ~ N(v_i, diag(j^-1.2))
    y = argmax(W_i x + b_i)

where the second argument of N is a variance. Client sizes follow a heavy-tailed lognormal law. Ten samples in every
hundred of each client make up the test part.

Reference: Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, section 5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.streams import stream
from fedsmoo.data.dataset import Dataset

FEATURES, CLASSES = 60, 10


@dataclass(frozen=True)
class Client:
    """One client's true model and samples."""

    weight: np.ndarray
    bias: np.ndarray
    x: np.ndarray
    y: np.ndarray


def synthetic(alpha: float = 0.5, beta: float = 0.5, seed: int = 0, clients: int = 30) -> Dataset:
    """Logistic data with natural clients of unequal size, float features ``[N, 60]``.

    Args:
        alpha: variance of the clients' models; 0 makes them alike in law.
        beta: variance of the clients' feature means.
        seed: names the streams from which the data is drawn.
        clients: how many clients.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not (math.isfinite(value) and value >= 0):
            raise FedsmooError(f"synthetic data: {name} is {value}, but must be a number of at least 0")
    if clients < 1:
        raise FedsmooError(f"synthetic data: {clients} clients asked for, but at least 1 is needed")
    sizes = client_sizes(clients, seed)
    made = [make_client(alpha, beta, int(n), seed, i) for i, n in enumerate(sizes)]
    tests = sizes // 10
    train_x = [c.x[t:] for c, t in zip(made, tests, strict=True)]
    ends = np.cumsum([len(x) for x in train_x])
    return Dataset(
        name=f"synthetic({alpha:g},{beta:g})",
        x_train=torch.from_numpy(np.concatenate(train_x)),
        y_train=torch.from_numpy(np.concatenate([c.y[t:] for c, t in zip(made, tests, strict=True)])),
        x_test=torch.from_numpy(np.concatenate([c.x[:t] for c, t in zip(made, tests, strict=True)])),
        y_test=torch.from_numpy(np.concatenate([c.y[:t] for c, t in zip(made, tests, strict=True)])),
        classes=CLASSES,
        natural=tuple(torch.arange(end - len(x), end) for x, end in zip(train_x, ends, strict=True)),
    )


def client_sizes(clients: int, seed: int) -> np.ndarray:
    """Return samples per client: 50 plus a lognormal(4, 2) draw, which a few large clients dominate.

    The draw is cut at 5,000 so that a rare seed cannot ask for millions of samples.
    """
    tail = stream(seed, "synthetic sizes").lognormal(4.0, 2.0, clients)
    return 50 + np.minimum(tail, 5_000).astype(np.int64)


def make_client(alpha: float, beta: float, samples: int, seed: int, i: int) -> Client:
    """Draw client i from its own stream, so that it does not depend on the other clients."""
    rng = stream(seed, "synthetic client", i)
    centre = rng.normal(0.0, math.sqrt(alpha))
    weight, bias = rng.normal(centre, 1.0, (FEATURES, CLASSES)), rng.normal(centre, 1.0, CLASSES)
    mean = rng.normal(rng.normal(0.0, math.sqrt(beta)), 1.0, FEATURES)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # the root of the variance j^-1.2
    x = (mean + spread * rng.standard_normal((samples, FEATURES))).astype(np.float32)
    y = np.argmax(x.astype(np.float64) @ weight + bias, axis=1)
    return Client(weight, bias, x, y)
