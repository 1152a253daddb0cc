"""What a batch that is filled up with repetitions does to a model whose samples see each other, as BatchNorm's do.

Batches of C clients have one shape, so that the rows of shorter ones are filled up. A sample's loss with the weight 0
hides such a row from a gradient, but not from a mean over the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedsmoo.models.base import FlatModel

NORMS = (nn.modules.batchnorm._BatchNorm,)


class Masked(TorchFunctionMode):
    """While this lasts ``F.batch_norm`` normalises by the rows of a batch that are ``real [B]``, and by no others."""

    def __init__(self, real: Tensor) -> None:
        super().__init__()
        self.real = real

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return masked_batch_norm(self.real, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def masked_batch_norm(
    real: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm`` of the rows that are ``real``; where none is, of all: such a client has finished."""
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    axes, channels = (0, *range(2, x.dim())), (1, -1, *[1] * (x.dim() - 2))
    rows = (real | ~real.any()).to(x.dtype).repeat_interleave(len(x) // len(real))  # several rows of a sample
    each = rows.view(-1, *[1] * (x.dim() - 1))
    n = rows.sum() * x[0, 0].numel()
    mean = (each * x).sum(axes) / n
    centred = x - mean.view(channels)
    variance = (each * centred.square()).sum(axes) / n
    out = centred * (variance + eps).rsqrt().view(channels)
    if weight is not None:
        out = out * weight.view(channels)
    if bias is not None:
        out = out + bias.view(channels)
    if running_mean is not None and running_var is not None:
        unbiased = variance.detach() * (n / (n - 1).clamp(min=1))
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean.detach())
        running_var.copy_((1 - momentum) * running_var + momentum * unbiased)
    return out.to(input.dtype)


def judge_padding(model: FlatModel, x: Tensor) -> None:
    """Find out what padding does to a model, from a few samples, and how many samples a batch must have at least.

    ``padding`` becomes ``free`` where no sample sees another one, ``masked`` where :class:`Masked` hides padding, and
    ``equal`` where only clients with batches of the same length can be computed at once. Dropout draws other numbers
    for a batch of another length: a model that draws is looked at with its layers of BatchNorm alone in train mode.
    """
    if len(x) < 3 or (model.random and model.statistics is None):
        return
    whole = len(x)
    real = torch.arange(whole, device=x.device) < max(2, whole - 3)
    try:
        with layers_in_training(model):
            alone = passed(model, x[real])
            if model.statistics is None and same(alone, passed(model, x), real):
                return
            with Masked(real):
                model.padding = "masked" if only_norms(model) and same(alone, passed(model, x), real) else "equal"
    except Exception:  # the user's own code, which may know one length of batches only
        model.padding = "free" if model.statistics is None else "equal"
    if model.padding != "free":
        model.batched = None
        model.fewest = 1 if passes(model, x[:1]) else 2


@contextmanager
def layers_in_training(model: FlatModel) -> Iterator[None]:
    """Put a model in train mode, or one that draws in eval mode but for its layers of BatchNorm."""
    model.train(not model.random)
    norms = [m for m in model.module.modules() if isinstance(m, NORMS) and not m.training]
    for m in norms:
        m.training = True
    try:
        yield
    finally:
        for m in norms:
            m.training = False
        model.train()


def passed(model: FlatModel, x: Tensor) -> list[Tensor]:
    """Return the outputs of a pass that is nobody's, and what became of the statistics."""
    own = next((p.dtype for p in model.module.parameters() if p.is_floating_point()), torch.float32)
    w = model.initial().to(x.device, x.dtype if x.is_floating_point() else own)
    stats = model.statistics
    whole = {**model.layout.split(w), **({} if stats is None else stats.split(stats.first.to(w)))}
    with torch.no_grad():
        out = [model.forward(whole, x)]
    return out if stats is None else [*out, stats.join(whole, w.dtype)]


def same(alone: list[Tensor], padded: list[Tensor], real: Tensor) -> bool:
    """Return whether padding changed nothing: neither the outputs of real samples nor statistics."""

    def near(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(a.abs().max()), equal_nan=True)

    return all(map(near, alone, [padded[0][real], *padded[1:]]))


def only_norms(model: FlatModel) -> bool:
    """Return whether all statistics of a model are of layers of BatchNorm."""
    names = () if model.statistics is None else model.statistics.names
    return all(isinstance(model.module.get_submodule(n.rpartition(".")[0]), NORMS) for n in names)


def passes(model: FlatModel, x: Tensor) -> bool:
    """Return whether a model takes a batch of these samples in train mode."""
    try:
        with layers_in_training(model):
            passed(model, x)
    except Exception:
        return False
    return True
