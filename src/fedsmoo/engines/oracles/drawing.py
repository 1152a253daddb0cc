"""What the random layers of C clients draw at once: for each client, to the bit, what it draws alone."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Round
from fedsmoo.core.errors import first_line
from fedsmoo.core.random.layers import ClientsNoise, WatchedNoise
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.engines.oracles.layers import forward_of_many, over_clients
from fedsmoo.engines.statistics.passes import Maybe, real_rows, without_padding
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models.hidden import largest
from fedsmoo.models.modules.modes import without_zeros

Axes = tuple[tuple[int, int | None], ...]  # of each draw: how many axes it has, and which is the one of samples


def noise_of(axes: Axes, rnd: Round, batch: Batch) -> ClientsNoise:
    """Return where C clients draw at the step ``rnd`` on a batch ``[C, B, ...]``: all of it on their device."""
    assert batch.real is not None
    steps = rnd.step.flatten().to(torch.int64).expand(len(batch.real))
    return ClientsNoise(rnd.key, steps, batch.real, batch.weight.shape[1], axes)


def sample_axes(task: Task) -> Axes:
    """Find the axis of samples in everything a model draws: the one that grows if it is given one sample more.

    Raises:
        FedsmooError: if there is no such axis, and still the draws depend on the number of samples.
    """
    few, more = (drawn_shapes(task, n) for n in (2, 3))
    found = []
    for a, b in zip(few, more, strict=False):
        grown = [i for i, (m, n) in enumerate(zip(a, b, strict=False)) if m != n]
        if len(a) != len(b) or len(grown) > 1 or any(3 * a[i] != 2 * b[i] for i in grown):
            raise FedsmooError(f"it draws {list(a)} numbers for 2 samples and {list(b)} for 3, at once")
        found.append((len(a), grown[0] if grown else None))
    if len(few) != len(more):
        raise FedsmooError(f"it draws {len(few)} times for 2 samples and {len(more)} times for 3")
    return tuple(found)


def samples(task: Task, n: int) -> Tensor:
    """Return ``n`` training samples as the model takes them, repeated where there are fewer."""
    index = torch.arange(n, device=task.data.x_train.device) % len(task.data.x_train)
    return task.inputs(task.data.x_train[index])


def drawn_shapes(task: Task, n: int) -> list[tuple[int, ...]]:
    """Return the shapes of what a model draws for ``n`` samples in train mode."""
    model = task.model
    model.train()
    parts = model.layout.split(model.initial().to(task.device, task.dtype))
    noise = WatchedNoise((0, 0))
    with torch.no_grad():
        model.forward(parts, samples(task, n), noise)
    return noise.shapes


def unlike_alone(task: Task) -> str:
    """Return why the clients of a random model cannot share a batch, in words; empty if they can.

    Three clients, two of whose batches are padded, go through the model at once and one by one: where the same numbers
    do not fall to the same samples, outputs differ.
    """
    name = f"the model {type(task.model.module).__name__}"
    if task.model.padding == "equal":
        return f"{name} draws random numbers, and samples see each other in it or in the loss"
    try:
        alone, together = both(task)
    except FedsmooError as e:
        return f"{name} draws random numbers in a way that differs in a batch of clients: {e}"
    except Exception as e:  # the user's own code
        return f"{name} draws random numbers, and vmap cannot run it: {type(e).__name__}: {first_line(e)}"
    scale = max(map(largest, alone), default=1.0)
    # Products of a GPU may have ten bits; numbers that fall to other samples change outputs by about their size.
    near = 2e-2 if task.device.type == "cuda" else 1e-4
    if all(
        torch.allclose(a, b, rtol=1e-3, atol=near * scale, equal_nan=True) for a, b in zip(alone, together, strict=True)
    ):
        return ""
    return f"{name} gives a sample other random numbers in a batch that is padded than in its own"


def both(task: Task) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs of three clients on 4, 3 and 2 samples: of one after the other, and of all at once."""
    model, real = task.model, (4, 3, 2)
    keys = [key_of(0, "together", c) for c in range(len(real))]
    given = torch.tensor(real, device=task.device)
    noise = ClientsNoise(
        torch.tensor(keys, device=task.device), torch.ones_like(given), given, max(real), sample_axes(task)
    )
    w = without_zeros(model.initial().to(task.device, task.dtype))
    x = samples(task, len(real) * max(real)).unflatten(0, (len(real), -1))
    model.train()
    with torch.no_grad():
        one = partial(model.forward, model.layout.split(w))
        alone = [one(x[c, :n], Noise(keys[c], 1)) for c, n in enumerate(real)]

        def together(parts: dict[str, Tensor], real: Maybe, x: Tensor) -> Tensor:
            with without_padding(real):
                return forward_of_many(model)(parts, x, noise)

        rows = real_rows(model, Batch(x, x, x.new_zeros(x.shape[:2]), real=given))
        found = over_clients(together, model, noise)(model.layout.split(w.expand(len(real), -1)), rows, x)
    return alone, [out[:n] for out, n in zip(found, real, strict=True)]
