"""Data of one's own, its division among clients, and who takes part: three functions, from Python or a command.

``python examples/own_data.py`` trains on them; so does ``fedsmoo run --dataset examples/own_data.py:rings --partition
examples/own_data.py:by_ring --sampling examples/own_data.py:in_turn --set noise=0.3 --clients 8 --cohort 2``.
"""

import numpy as np

from fedsmoo import simulate, stream


def rings(seed, noise=0.1):
    """Points on three rings around the origin: which ring?"""
    rng = stream(seed, "rings")
    y = rng.integers(3, size=1000)
    angle, radius = rng.uniform(0, 2 * np.pi, 1000), 1 + y + noise * rng.normal(size=1000)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle), radius**2], 1).astype(np.float32)
    return x[:800], y[:800], x[800:], y[800:]


def by_ring(labels, classes, clients, seed):
    """Sorted by class and dealt out in blocks: a client sees few classes."""
    return np.array_split(np.argsort(labels, kind="stable"), clients)


def in_turn(seed, round, clients, cohort):
    """The next clients in a circle, so that everybody takes part equally often."""
    return [(round * cohort + i) % clients for i in range(cohort)]


def main():
    task = {"clients": 8, "cohort": 4, "rounds": 30, "lr": 0.05, "device": "cpu"}
    result = simulate("mlp", rings(seed=0), "fedsmoo", partition=by_ring, sampling=in_turn, **task)
    print(f"accuracy {result.accuracy:.4f}; cohorts {[record.cohort for record in result.history[:3]]}")
    return result


if __name__ == "__main__":
    main()
