"""Who trains on what in a round: batch indices, augmentation draws and keys of noise, made outside the hot loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsmoo.core.random.noise import key_of
from fedsmoo.core.random.streams import stream

Draws = dict[str, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """The batches of C clients for one round.

    ``index[k, c, :count[k, c]]`` are the samples of client c's k-th local step; the rest of the row is padding: a
    sample of the client's own, since 0 times what overflows on somebody else's would be no 0. A count of 0 means that
    the client has finished. ``draws`` are augmentation draws of the same shape, or ``None``; ``keys`` name each
    client's noise in this round.
    """

    index: np.ndarray  # int64 [K, C, B]
    count: np.ndarray  # int64 [K, C]
    draws: Draws | None = None
    keys: np.ndarray | None = None  # uint32 [C, 2]

    @property
    def steps(self) -> np.ndarray:
        """How many local steps each client makes: ``[C]``."""
        return (self.count > 0).sum(0)

    def select(self, clients: slice) -> Plan:
        """Return the plan of some of the clients, without the steps that only others make."""
        count = self.count[:, clients]
        last = int((count > 0).any(1).sum())
        draws = None if self.draws is None else {n: d[:last, clients] for n, d in self.draws.items()}
        return Plan(self.index[:last, clients], count[:last], draws, None if self.keys is None else self.keys[clients])


def client_batches(
    seed: int, number: int, client: int, samples: np.ndarray, batch_size: int, epochs: int | None, steps: int | None
) -> list[np.ndarray]:
    """Draw one client's batches in a round: a fresh permutation per epoch, whose last batch may be smaller.

    Either ``epochs`` passes over the samples or exactly ``steps`` batches. No other client matters.
    """
    rng = stream(seed, "batches", number, client)
    batches: list[np.ndarray] = []
    passes = 0
    while passes < (epochs or 0) if steps is None else len(batches) < steps:
        order = rng.permutation(samples)
        batches += [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        passes += 1
    return batches[:steps]


def usual_steps(indices: Sequence[np.ndarray], batch_size: int, epochs: int | None, steps: int | None) -> float:
    """Return how many local steps clients with these samples make, in the mean over all of them.

    >>> usual_steps([np.arange(20), np.arange(5)], batch_size=8, epochs=2, steps=None)
    4.0
    """
    if steps is not None:
        return float(steps)
    return float(np.mean([(epochs or 0) * math.ceil(len(samples) / batch_size) for samples in indices]))


def plan_bytes(
    sizes: Sequence[int], cohort: int, batch_size: int, epochs: int | None, steps: int | None, augment: bool
) -> int:
    """Return the bytes, about, that the plan of the largest cohort takes while it is made.

    ``sizes`` are the samples of each client. Rows are padded to the client with the most steps.

    >>> plan_bytes([100, 50], cohort=2, batch_size=10, epochs=5, steps=None, augment=False)
    26050
    """
    own = sorted(steps if steps is not None else (epochs or 0) * -(-n // batch_size) for n in sizes)[-cohort:]
    width, longest = min(batch_size, max(sizes)), own[-1]
    padded = longest * cohort * (width * (8 + 3 * augment) + 8)
    batches = sum(own) * (width * 8 + 150)  # each an array of its own, which Python has a head for
    return padded + batches + augment * longest * batch_size * 24  # drawn of a client as for full batches, then cut


def make_plan(
    seed: int,
    number: int,
    clients: Sequence[int],
    indices: Sequence[np.ndarray] | Mapping[int, np.ndarray],
    batch_size: int,
    epochs: int | None = None,
    steps: int | None = None,
    draw: Callable[[np.random.Generator, tuple[int, ...]], Draws] | None = None,
    width: int | None = None,
) -> Plan:
    """Return the plan of a cohort in round ``number``.

    ``indices[i]`` are client i's samples; ``draw(rng, shape)`` makes augmentation draws; ``width`` is the common batch
    width B (default: ``batch_size``, or less if no client has so many samples).
    """
    batches = [client_batches(seed, number, i, indices[i], batch_size, epochs, steps) for i in clients]
    width = width or min(batch_size, max((len(b) for bs in batches for b in bs), default=1))
    k = max((len(bs) for bs in batches), default=0)
    index = np.zeros((k, len(batches), width), np.int64)
    count = np.zeros((k, len(batches)), np.int64)
    for c, bs in enumerate(batches):
        index[:, c] = bs[0][0] if bs else 0
        for j, b in enumerate(bs):
            index[j, c, : len(b)] = b
            count[j, c] = len(b)
    keys = np.array([key_of(seed, "noise", number, i) for i in clients], np.uint32).reshape(-1, 2)
    if draw is None:
        return Plan(index, count, keys=keys)
    draws: Draws = {}
    for c, i in enumerate(clients):
        # As wide as a full batch, then cut: what a client draws must not depend on how many samples others have.
        own = len(batches[c])
        for name, values in draw(stream(seed, "augment", number, i), (own, batch_size)).items():
            draws.setdefault(name, np.zeros(index.shape, values.dtype))[:own, c] = values[:, :width]
    return Plan(index, count, draws, keys)


def merge(plans: Sequence[Plan]) -> Plan:
    """Concatenate the plans of several groups of clients, padded to the longest and the widest."""
    if len(plans) == 1:
        return plans[0]
    steps, width = max(p.index.shape[0] for p in plans), max(p.index.shape[2] for p in plans)

    def padded(a: np.ndarray, own: bool = False) -> np.ndarray:
        pads = [(0, steps - a.shape[0]), (0, 0), (0, width - a.shape[2] if a.ndim == 3 else 0)]
        return np.pad(a, pads[: a.ndim], mode="edge" if own and a.size else "constant")

    draws = None
    if plans[0].draws is not None:
        draws = {n: np.concatenate([padded(p.draws[n]) for p in plans if p.draws], axis=1) for n in plans[0].draws}
    index = np.concatenate([padded(p.index, own=True) for p in plans], axis=1)
    keys = [p.keys for p in plans if p.keys is not None]
    count = np.concatenate([padded(p.count) for p in plans], axis=1)
    return Plan(index, count, draws, np.concatenate(keys) if len(keys) == len(plans) else None)
