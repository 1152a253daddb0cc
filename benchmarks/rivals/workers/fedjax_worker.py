"""FedJAX: its federated averaging, the steps of clients compiled. Every batch is full: what an epoch leaves over is
filled with further samples."""

from __future__ import annotations

import jax

if not hasattr(jax, "tree_map"):  # FedJAX calls it by a name that later releases of JAX no longer have
    jax.tree_map = jax.tree.map

import fedjax

from benchmarks.rivals.common import Clock, answer, memory_bytes, workload
from benchmarks.rivals.workers import jax_nets


def main() -> None:
    jax_nets.begin()
    work = workload()
    s = work.settings
    x, y = jax_nets.samples()
    held = fedjax.InMemoryFederatedData({f"{i:05d}": {"x": x[c], "y": y[c]} for i, c in enumerate(work.clients)})
    gradient = jax.jit(jax.grad(lambda p, batch, rng: jax_nets.loss(p, batch["x"], batch["y"], rng)))
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient,
        fedjax.optimizers.create_optimizer_from_optax(jax_nets.optimiser()),
        fedjax.optimizers.sgd(learning_rate=1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=s["batch_size"], num_epochs=None, num_steps=work.steps),
    )
    state = algorithm.init(jax_nets.first())
    sampler = fedjax.client_samplers.UniformGetClientSampler(held, num_clients=s["cohort"], seed=s["seed"])
    clock = Clock()
    for t in range(work.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        clock.lap()
        if t + 1 == work.scored:
            kept = state.params
    answer(clock, jax_nets.module(kept), ["fedjax", "jax"], memory_bytes())


if __name__ == "__main__":
    main()
