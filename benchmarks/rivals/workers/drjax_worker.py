"""DrJAX: a round as one compiled program that maps clients by ``vmap``, their steps in a loop of the compiler."""

from __future__ import annotations

from typing import Any

import drjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.rivals.common import Clock, answer, memory_bytes, workload
from benchmarks.rivals.workers import jax_nets

COHORT = workload().settings["cohort"]


def local(p: jax_nets.Params, index: Any, weight: Any, key: Any, x: Any, y: Any) -> jax_nets.Params:
    """A client's steps: ``index [steps, batch]``, with weight 0 where a batch is shorter."""
    optimiser = jax_nets.optimiser()

    def loss(p: jax_nets.Params, at: Any, w: Any, rng: Any) -> Any:
        out = jax_nets.mlp(p, x[at]) if SMALL else jax_nets.dropped(p, x[at], rng)
        return (w * optax.softmax_cross_entropy_with_integer_labels(out, y[at])).sum() / w.sum()

    def step(carry: Any, batch: Any) -> Any:
        p, state, rng = carry
        rng, mine = jax.random.split(rng)
        updates, state = optimiser.update(jax.grad(loss)(p, *batch, mine), state, p)
        return (optax.apply_updates(p, updates), state, rng), None

    (p, _, _), _ = jax.lax.scan(step, (p, optimiser.init(p), key), (index, weight))
    return p


SMALL = workload().settings["net"] == "mlp"


@jax.jit
@drjax.program(placements={"clients": COHORT})
def one_round(p: jax_nets.Params, index: Any, weight: Any, keys: Any, x: Any, y: Any) -> jax_nets.Params:
    sent = drjax.broadcast((p, x, y))
    trained = drjax.map_fn(lambda s, i, w, k: local(s[0], i, w, k, s[1], s[2]), (sent, index, weight, keys))
    return drjax.reduce_mean(trained)


def batches(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw a cohort and its batches: indices and weights ``[clients, steps, batch]``."""
    work = workload()
    size, epochs = work.settings["batch_size"], work.settings["local_epochs"]
    index = np.zeros((COHORT, work.steps, size), np.int32)
    weight = np.zeros(index.shape, np.float32)
    for i, c in enumerate(rng.choice(len(work.clients), COHORT, replace=False)):
        mine, k = work.clients[c], 0
        for _ in range(epochs):
            order = rng.permutation(mine)
            for start in range(0, len(order), size):
                part = order[start : start + size]
                index[i, k, : len(part)], weight[i, k, : len(part)], k = part, 1, k + 1
    return index, weight


def main() -> None:
    work = workload()
    rng = np.random.default_rng(work.settings["seed"])
    x, y = jnp.asarray(work.inputs(work.x_train).numpy()), jnp.asarray(work.y_train.numpy())
    p, key, clock = jax_nets.first(), jax.random.key(work.settings["seed"]), Clock()
    for _ in range(work.rounds):
        key, mine = jax.random.split(key)
        p = one_round(p, *batches(rng), jax.random.split(mine, COHORT), x, y)
        jax.block_until_ready(p)
        clock.lap()
    answer(clock, jax_nets.module(p), ["drjax", "jax"], memory_bytes())


if __name__ == "__main__":
    main()
