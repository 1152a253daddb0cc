"""Samples kept for validation: nobody trains on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.streams import stream
from fedsmoo.core.share import count_of_share


def held_by(indices: Sequence[np.ndarray], held: np.ndarray) -> list[np.ndarray]:
    """Return which of the samples held out each client had, were it to be asked on its own; some may have none.

    >>> held_by([np.array([0, 4, 4, 2]), np.array([2, 3]), np.array([1])], np.array([2, 4]))
    [array([2, 4]), array([2]), array([], dtype=int64)]
    """
    return [np.intersect1d(samples, held) for samples in indices]


def hold_out(indices: Sequence[np.ndarray], share: float, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return what each client trains on, in its own order, and the sorted samples held out for validation.

    Clients may hold a sample several times, and several clients may hold it: samples are cut, not their places in a
    client's list, and what one client holds out no other one trains on. Client after client, as many of its samples as
    make up its share are drawn from those that no client before it has; where they overlap, shares are met as nearly
    as that allows.
    """
    undecided, held = -1, np.full(1 + max((int(i.max()) for i in indices if len(i)), default=-1), -1, np.int8)
    for client, samples in enumerate(indices):
        own = np.unique(samples)
        wanted = min(count_of_share(len(own), share, round), len(own) - 1) - int((held[own] == 1).sum())
        free = stream(seed, "holdout", client).permutation(own[held[own] == undecided])
        held[free] = 0
        held[free[: max(wanted, 0)]] = 1
    kept = [samples[held[samples] != 1] for samples in indices]
    empty = [i for i, samples in enumerate(kept) if len(samples) == 0]
    if empty:
        raise FedsmooError(
            f"holdout {share:g} leaves client {empty[0]} without a sample to train on ({len(empty)} such clients): "
            "lower it, or divide the data among fewer clients"
        )
    if not (held == 1).any():
        raise FedsmooError(f"holdout {share:g} keeps no sample: every client has too few, raise it")
    return kept, np.flatnonzero(held == 1)
