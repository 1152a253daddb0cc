"""What the two ways by JAX share: networks as functions of PyTorch's weights, the loss, the client's optimiser."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn

from benchmarks.rivals.common import workload

Params = dict[str, Any]


def first() -> Params:
    return {n: jnp.asarray(p.numpy()) for n, p in workload().start.items()}


def mlp(p: Params, x: Any) -> Any:
    for i in (1, 2, 3):
        x = x @ p[f"fc{i}.weight"].T + p[f"fc{i}.bias"]
        x = jax.nn.relu(x) if i < 3 else x
    return x


def dropped(p: Params, x: Any, rng: Any) -> Any:
    """The network with dropout; images channels first, as PyTorch's weights have them."""
    for layer in ("0", "2"):
        x = jax.lax.conv_general_dilated(x, p[f"{layer}.weight"], (1, 1), "VALID")
        x = jax.nn.relu(x + p[f"{layer}.bias"][:, None, None])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    one, two = jax.random.split(rng)
    x = drop(one, x, 0.25).reshape(len(x), -1)
    x = drop(two, jax.nn.relu(x @ p["7.weight"].T + p["7.bias"]), 0.5)
    return x @ p["10.weight"].T + p["10.bias"]


def drop(rng: Any, x: Any, rate: float) -> Any:
    return jnp.where(jax.random.bernoulli(rng, 1 - rate, x.shape), x / (1 - rate), 0)


def loss(p: Params, x: Any, y: Any, rng: Any) -> Any:
    out = mlp(p, x) if workload().settings["net"] == "mlp" else dropped(p, x, rng)
    return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()


def optimiser() -> optax.GradientTransformation:
    """PyTorch's order: the clipped gradient, the decay, the step."""
    s = workload().settings
    clip = optax.identity() if s["clip"] is None else optax.clip_by_global_norm(s["clip"])
    return optax.chain(clip, optax.add_decayed_weights(s["weight_decay"]), optax.sgd(s["lr"]))


def module(p: Params) -> nn.Module:
    """Return the trained weights as a network of PyTorch, to be scored like all others."""
    model = workload().module()
    model.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in p.items()})
    return model
