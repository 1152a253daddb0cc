"""DrJAX: a round as one compiled program that maps clients by ``vmap``, their steps in a loop of the compiler.

With ``turn`` as an argument it maps one group of all clients, which are trained one after the other in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import drjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.rivals.common import Clock, answer, memory_bytes, workload
from benchmarks.rivals.workers import jax_nets


def local(p: jax_nets.Params, index: Any, weight: Any, key: Any, x: Any, y: Any) -> jax_nets.Params:
    """A client's steps: ``index [steps, batch]``, with weight 0 where a batch is shorter."""
    optimiser = jax_nets.optimiser()

    def loss(p: jax_nets.Params, at: Any, w: Any, rng: Any) -> Any:
        out = jax_nets.forward(p, x[at], rng)
        return (w * optax.softmax_cross_entropy_with_integer_labels(out, y[at])).sum() / w.sum()

    def step(carry: Any, batch: Any) -> Any:
        p, state, rng = carry
        rng, mine = jax.random.split(rng)
        updates, state = optimiser.update(jax.grad(loss)(p, *batch, mine), state, p)
        return (optax.apply_updates(p, updates), state, rng), None

    (p, _, _), _ = jax.lax.scan(step, (p, optimiser.init(p), key), (index, weight))
    return p


def in_turn(p: jax_nets.Params, index: Any, weight: Any, keys: Any, x: Any, y: Any) -> jax_nets.Params:
    """The mean over a group of clients, ``index [clients, steps, batch]``."""
    trained = jax.lax.map(lambda mine: local(p, *mine, x, y), (index, weight, keys))
    return jax.tree.map(lambda v: v.mean(0), trained)


def program(turn: bool) -> Callable[..., jax_nets.Params]:
    """Return a round of a cohort as a compiled function of weights, batches, keys and all samples."""
    groups, train = (1, in_turn) if turn else (workload().settings["cohort"], local)

    @jax.jit
    @drjax.program(placements={"clients": groups})
    def one_round(p: jax_nets.Params, index: Any, weight: Any, keys: Any, x: Any, y: Any) -> jax_nets.Params:
        sent = drjax.broadcast(p)  # the samples are there already: to broadcast them, too, would copy them
        mine = jax.tree.map(lambda v: v[None], (index, weight, keys)) if turn else (index, weight, keys)
        return drjax.reduce_mean(drjax.map_fn(lambda *given: train(*given, x, y), (sent, *mine)))

    return one_round


def batches(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw a cohort and its batches: indices and weights ``[clients, steps, batch]``."""
    work = workload()
    size, epochs, cohort = (work.settings[n] for n in ("batch_size", "local_epochs", "cohort"))
    index = np.zeros((cohort, work.steps, size), np.int32)
    weight = np.zeros(index.shape, np.float32)
    for i, c in enumerate(rng.choice(len(work.clients), cohort, replace=False)):
        mine, k = work.clients[c], 0
        for _ in range(epochs):
            order = rng.permutation(mine)
            for start in range(0, len(order), size):
                part = order[start : start + size]
                index[i, k, : len(part)], weight[i, k, : len(part)], k = part, 1, k + 1
    return index, weight


def main() -> None:
    jax_nets.begin()
    work, one_round = workload(), program("turn" in sys.argv[1:])
    rng = np.random.default_rng(work.settings["seed"])
    x, y = (jnp.asarray(a) for a in jax_nets.samples())
    p, key, clock = jax_nets.first(), jax.random.key(work.settings["seed"]), Clock()
    for t in range(work.rounds):
        key, mine = jax.random.split(key)
        p = one_round(p, *batches(rng), jax.random.split(mine, work.settings["cohort"]), x, y)
        jax.block_until_ready(p)
        clock.lap()
        if t + 1 == work.scored:
            kept = p
    answer(clock, jax_nets.module(kept), ["drjax", "jax"], memory_bytes())


if __name__ == "__main__":
    main()
