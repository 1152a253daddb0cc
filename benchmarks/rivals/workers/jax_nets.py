"""What the two ways by JAX share: networks as functions of PyTorch's weights, the loss, the client's optimiser.

In bf16 they do what autocast does: weights are float32, the operands of products are cast, norms and the loss are
float32.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn

from benchmarks.rivals.common import workload

Params = dict[str, Any]
GROUPS, EPSILON = 2, 1e-5  # of every GroupNorm


def begin() -> None:
    """Hold JAX to a GPU where one is asked for, and products of float32 to TF32, which it takes there by itself."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cuda") and jax.default_backend() != "gpu":
        raise SystemExit("JAX finds no GPU")  # it would go on without one
    if workload().settings["precision"] == "tf32":
        jax.config.update("jax_default_matmul_precision", "tensorfloat32")


def first() -> Params:
    return {n: jnp.asarray(p.numpy()) for n, p in workload().start.items()}


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Return all samples as a network takes them, and their labels."""
    work = workload()
    return work.inputs(work.x_train).cpu().numpy(), work.y_train.numpy()


def forward(p: Params, x: Any, rng: Any) -> Any:
    """Return logits by the workload's network; images channels first, as PyTorch's weights have them."""
    name = workload().settings["net"]
    out = mlp(p, x) if name == "mlp" else resnet18_gn(p, x) if name == "resnet18_gn" else dropped(p, x, rng)
    return whole(out)


def mlp(p: Params, x: Any) -> Any:
    for i in (1, 2, 3):
        x = linear(p, f"fc{i}", x)
        x = jax.nn.relu(x) if i < 3 else x
    return x


def dropped(p: Params, x: Any, rng: Any) -> Any:
    """The network with dropout."""
    for layer in ("0", "2"):
        x = conv(p[f"{layer}.weight"], x)
        x = jax.nn.relu(x + product(p[f"{layer}.bias"])[:, None, None])
    x = largest(x, 2, 2)
    one, two = jax.random.split(rng)
    x = drop(one, x, 0.25).reshape(len(x), -1)
    x = drop(two, jax.nn.relu(linear(p, "7", x)), 0.5)
    return linear(p, "10", x)


def resnet18_gn(p: Params, x: Any) -> Any:
    """Torchvision's ResNet-18 with GroupNorm: the stem of ImageNet, four stages of two blocks."""
    x = largest(jax.nn.relu(norm(p, "bn1", conv(p["conv1.weight"], x, 2, 3))), 3, 2, 1)
    for stage in (1, 2, 3, 4):
        for i in (0, 1):
            x = block(p, f"layer{stage}.{i}", x, 2 if stage > 1 and i == 0 else 1)
    return linear(p, "fc", x.mean((2, 3)))


def block(p: Params, name: str, x: Any, stride: int) -> Any:
    hidden = jax.nn.relu(norm(p, f"{name}.bn1", conv(p[f"{name}.conv1.weight"], x, stride, 1)))
    hidden = norm(p, f"{name}.bn2", conv(p[f"{name}.conv2.weight"], hidden, 1, 1))
    if f"{name}.downsample.0.weight" in p:
        x = norm(p, f"{name}.downsample.1", conv(p[f"{name}.downsample.0.weight"], x, stride))
    return jax.nn.relu(hidden + x)


def product(x: Any) -> Any:
    """Return an operand of a product in the precision of the run."""
    return x.astype(jnp.bfloat16) if workload().settings["precision"] == "bf16" else x


def whole(x: Any) -> Any:
    """Return what a product gave in float32 at least."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def linear(p: Params, name: str, x: Any) -> Any:
    return product(x) @ product(p[f"{name}.weight"]).T + product(p[f"{name}.bias"])


def conv(weight: Any, x: Any, stride: int = 1, padding: int = 0) -> Any:
    around: Sequence[tuple[int, int]] = [(padding, padding)] * 2
    return jax.lax.conv_general_dilated(product(x), product(weight), (stride, stride), around)


def norm(p: Params, name: str, x: Any) -> Any:
    """GroupNorm with the variance of Flax: the mean of squares less the square of the mean, one pass over ``x``."""
    groups = whole(x).reshape(len(x), GROUPS, -1)
    mean = groups.mean(-1, keepdims=True)
    variance = jnp.maximum((groups * groups).mean(-1, keepdims=True) - mean * mean, 0)
    x = ((groups - mean) * jax.lax.rsqrt(variance + EPSILON)).reshape(x.shape)
    return x * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None]


def largest(x: Any, side: int, stride: int, padding: int = 0) -> Any:
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, side, side), (1, 1, stride, stride), around)


def drop(rng: Any, x: Any, rate: float) -> Any:
    return jnp.where(jax.random.bernoulli(rng, 1 - rate, x.shape), x / (1 - rate), 0)


def loss(p: Params, x: Any, y: Any, rng: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(forward(p, x, rng), y).mean()


def optimiser() -> optax.GradientTransformation:
    """PyTorch's order: the clipped gradient, the decay, the step."""
    s = workload().settings
    clip = optax.identity() if s["clip"] is None else optax.clip_by_global_norm(s["clip"])
    return optax.chain(clip, optax.add_decayed_weights(s["weight_decay"]), optax.sgd(s["lr"]))


def module(p: Params) -> nn.Module:
    """Return the trained weights as a network of PyTorch, to be scored like all others."""
    torch.set_num_threads(min(8, os.cpu_count() or 1))  # nothing is timed any more
    model = workload().module()
    model.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in p.items()})
    return model
