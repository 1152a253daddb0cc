"""Which clients take part in a round."""

from __future__ import annotations

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.streams import stream

SAMPLINGS = {
    "uniform": "exactly n of the m clients, uniformly without replacement",
    "bernoulli": "each client with probability n/m, as in the authors' released code; a round may have no client",
}


def cohort(seed: int, number: int, clients: int, size: int, sampling: str = "uniform") -> list[int]:
    """The clients of round ``number``, in increasing order.

    >>> cohort(seed=0, number=0, clients=4, size=4)
    [0, 1, 2, 3]
    """
    if not 1 <= size <= clients:
        raise FedsmooError(f"a cohort of {size} out of {clients} clients: choose a cohort from 1 to {clients}")
    rng = stream(seed, "cohort", number)
    if sampling == "bernoulli":
        return np.flatnonzero(rng.random(clients) < size / clients).tolist()
    return sorted(rng.choice(clients, size, replace=False, shuffle=False).tolist())
