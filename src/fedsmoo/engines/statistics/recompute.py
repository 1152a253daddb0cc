"""Running statistics of a global model that nobody sends: computed afresh from training samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedsmoo.core import FedsmooError
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.core.random.streams import stream
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.task import Task

SAMPLES = 1024  # so many, in batches of the run's size


def drawn_samples(indices: Sequence[np.ndarray], batch_size: int, seed: int) -> list[np.ndarray]:
    """Draw the batches that statistics are recomputed on, the same ones in every round of a run.

    They are whole batches of the samples of all clients, of about a thousand samples in all; one of them all where they
    are fewer than a batch.
    """
    order = stream(seed, "statistics").permutation(np.unique(np.concatenate(indices)))
    many = min(len(order) // batch_size, -(-SAMPLES // batch_size))
    return [order] if many == 0 else np.split(order[: many * batch_size], many)


def recompute(task: Task, w: Tensor, batches: Sequence[np.ndarray], seed: int) -> Tensor:
    """Return the statistics of a model after passes in train mode over some batches, from the first statistics.

    Those of BatchNorm begin anew and are plain means over the batches, as of ``torch.optim.swa_utils.update_bn``.
    Samples are not augmented.
    """
    model = task.model
    assert model.statistics is not None
    model.train()
    whole = {**model.layout.split(w), **model.statistics.split(model.statistics.first.to(w))}
    with torch.no_grad(), products(task), cumulative(model.module, whole):
        for k, batch in enumerate(batches):
            x = task.inputs(task.pick(torch.from_numpy(batch)).x)
            model.forward(whole, x, Noise(key_of(seed, "noise of statistics"), k) if model.random else None)
    return model.statistics.join(whole, w.dtype)


@contextmanager
def cumulative(module: nn.Module, held: dict[str, Tensor]) -> Iterator[None]:
    """Have layers of BatchNorm begin anew in ``held``, and average over all batches alike, inside this context."""
    norms = {n: m for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    before = {n: m.momentum for n, m in norms.items()}
    for name, part in norms.items():
        part.momentum = None
        for own, value in {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}.items():
            if (key := f"{name}.{own}".lstrip(".")) in held:
                held[key].fill_(value)
    try:
        yield
    finally:
        for name, part in norms.items():
            part.momentum = before[name]


def refuse_lone_samples(
    task: Task, indices: Sequence[np.ndarray], batch_size: int, epochs: int | None, steps: int | None
) -> None:
    """Refuse batches of one sample where a model cannot train on one: BatchNorm of one value has no variance.

    Raises:
        FedsmooError: if a client would meet one.
    """
    if task.model.fewest < 2:
        return
    sizes = [len(samples) for samples in indices]

    def alone(n: int, size: int) -> bool:
        met = epochs is not None or (steps or 0) >= -(-n // size)
        return size == 1 or (n % size == 1 and met)

    client = next((i for i, n in enumerate(sizes) if alone(n, batch_size)), None)
    if client is None:
        return
    others = sorted(range(2, 2 * batch_size + 2), key=lambda size: abs(size - batch_size))
    fits = next((f", such as {size}" for size in others if not any(alone(n, size) for n in sizes)), "")
    what = "a batch" if batch_size == 1 else f"the last batch of its {sizes[client]} samples"
    raise FedsmooError(
        f"client {client}: {what} would be 1 sample, which normalisation by a batch (BatchNorm) cannot train on: set "
        f"another batch_size than {batch_size}{fits}, divide the data otherwise, or use nn.GroupNorm"
    )
