"""What a batch that is filled up with repetitions does to a model whose samples see each other, as BatchNorm's do.

Batches of C clients have one shape, so that the rows of shorter ones are filled up. A sample's loss with the weight 0
hides such a row from a gradient, but not from a mean over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedsmoo.models.base import FlatModel
from fedsmoo.models.hidden import first_weights, largest

Losses = Callable[[Tensor, int], Any]  # (outputs, of how many of the first samples) -> one loss per sample
NORMS = (nn.modules.batchnorm._BatchNorm,)
BLOWN_UP = 1e-4  # norms of few samples leave little but rounding, layer after layer


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


def judge_padding(model: FlatModel, x: Tensor, loss: Losses) -> None:
    """Find out what padding does to a model and its loss, from a few samples, and how many a batch must have at least.

    ``padding`` becomes ``free`` where no sample sees another one, ``masked`` where :class:`Masked` hides padding, and
    ``equal`` where only clients with batches of the same length can be computed at once. Batches of one sample, of two
    and of some are padded: a model may do otherwise with few. Dropout draws other numbers for a batch of another
    length: a model that draws is looked at with its layers of BatchNorm alone in train mode. One that draws in
    evaluation, too, cannot be looked at: it is ``equal`` if it has statistics.
    """
    if len(x) < 3 or (model.random_in_evaluation and model.statistics is None):
        return
    lengths, w = sorted({1, 2, max(2, len(x) - 3)}), first_weights(model, x)
    rows = torch.arange(len(x), device=x.device)
    near, rough = (1e-8 if w.dtype == torch.float64 else 2e-6), 1e-6  # of what is rounded
    if model.statistics is not None:
        near = rough = BLOWN_UP

    def hidden(masked: bool) -> bool:
        """Whether padding changes nothing: neither the outputs of real samples nor gradients nor statistics."""
        return all(agree(n, masked, w, near) or agree_in_64_bits(n, masked) for n in lengths)

    def agree(n: int, masked: bool, v: Tensor, near: float) -> bool:
        given = x.to(v.dtype) if x.is_floating_point() else x
        alone = (tried if v is w else passed)(model, v, given[:n], loss, n)
        with Masked(rows < n) if masked else nullcontext():
            return alone is None or same(alone, passed(model, v, given, loss, n), near)

    def agree_in_64_bits(n: int, masked: bool) -> bool:
        """Whether what differs is rounding, which norms of few samples blow up."""
        try:
            return w.dtype != torch.float64 and agree(n, masked, w.double(), rough)
        except Exception:  # a model or a loss without 64 bits
            return near < BLOWN_UP and agree(n, masked, w, BLOWN_UP)

    try:
        with layers_in_training(model):
            free = is_hidden_from(loss, passed(model, w, x, loss, len(x))[0], lengths)
            if free and model.statistics is None and hidden(masked=False):
                return
            looked = free and only_norms(model) and not model.random_in_evaluation
            model.padding = "masked" if looked and hidden(masked=True) else "equal"
    except Exception:  # the user's own code, which may know one length of batches only
        model.padding = "free" if model.statistics is None else "equal"
    if model.padding != "free":
        model.batched = None
        with layers_in_training(model):
            model.fewest = 2 if tried(model, w, x[:1], loss, 1) is None else 1


@contextmanager
def layers_in_training(model: FlatModel) -> Iterator[None]:
    """Put a model in train mode, or one that draws in eval mode but for the layers of BatchNorm that it would train."""
    model.train()
    norms = [m for m in model.module.modules() if isinstance(m, NORMS) and m.training] if model.random else []
    model.train(not model.random)
    for m in norms:
        m.training = True
    try:
        yield
    finally:
        for m in norms:
            m.training = False
        model.train()


@contextmanager
def in_full_precision(model: FlatModel, device: torch.device) -> Iterator[None]:
    """Let no product of a GPU be rounded to ten bits, which may be other ones for another length of batches.

    cuDNN's recurrent layers are left out: they have gradients in train mode only, and a model that draws is looked at
    in eval mode.
    """
    if device.type != "cuda":  # PyTorch refuses to tell the flags to whoever sets them by their newer names
        yield
        return
    matmul, recurrent = torch.backends.cuda.matmul, any(isinstance(m, nn.RNNBase) for m in model.module.modules())
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    try:
        with torch.backends.cudnn.flags(enabled=not recurrent, deterministic=True, allow_tf32=False):
            yield
    finally:
        matmul.allow_tf32 = before


def passed(model: FlatModel, w: Tensor, x: Tensor, loss: Losses, real: int) -> list[Tensor]:
    """Return what a step on the first ``real`` samples makes: outputs, the gradient, and what became of statistics."""
    stats = model.statistics
    parts = {n: p.detach().requires_grad_() for n, p in model.layout.split(w).items()}
    whole = {**parts, **({} if stats is None else stats.split(stats.first.to(w)))}
    with torch.enable_grad(), model.in_place(whole):
        out = model.forward(whole, x)
        each = loss(out, len(x))
        found = [out.detach()[:real]]
        if isinstance(each, Tensor) and each.shape == x.shape[:1] and each.requires_grad:  # others are refused later
            grads = torch.autograd.grad(each[:real].sum(), list(parts.values()), materialize_grads=True)
            found.append(model.layout.join(dict(zip(parts, grads, strict=True))))
    return found if stats is None else [*found, stats.join(whole, w.dtype)]


def tried(model: FlatModel, w: Tensor, x: Tensor, loss: Losses, real: int) -> list[Tensor] | None:
    """Return what :func:`passed` does; ``None`` if the model does not take a batch of these samples."""
    try:
        return passed(model, w, x, loss, real)
    except Exception:  # the user's own code, or BatchNorm of one sample
        return None


def is_hidden_from(loss: Losses, out: Tensor, lengths: list[int]) -> bool:
    """Whether padding changes nothing of the losses of given outputs: samples may see each other in a small part."""

    def of(out: Tensor, n: int) -> list[Tensor]:
        v = out.detach().clone().requires_grad_()
        with torch.enable_grad():
            each = loss(v.clone(), len(v))  # which it may write to
            if not isinstance(each, Tensor) or each.shape != v.shape[:1] or not each.requires_grad:
                return []  # refused later
            return [each.detach()[:n], torch.autograd.grad(each[:n].sum(), v)[0][:n]]

    def agree(n: int) -> bool:
        try:
            alone = of(out[:n], n)
        except Exception:  # a loss that needs more samples
            return True
        return same(alone, of(out, n), 1e-9 if out.dtype == torch.float64 else 2e-6)

    return not out.is_floating_point() or all(map(agree, lengths))


def same(alone: list[Tensor], padded: list[Tensor], near: float) -> bool:
    """Return whether two steps are one up to rounding: as near as this, by the largest number of each tensor."""

    def alike(a: Tensor, b: Tensor) -> bool:
        if a.shape != b.shape:
            return False
        atol = near * largest(a)
        return bool((a - b).abs_().max() <= atol) or torch.allclose(a, b, rtol=10 * near, atol=atol, equal_nan=True)

    return len(alone) == len(padded) and all(map(alike, alone, padded))


def only_norms(model: FlatModel) -> bool:
    """Return whether all statistics of a model are of layers of BatchNorm."""
    names = () if model.statistics is None else model.statistics.names
    return all(isinstance(model.module.get_submodule(n.rpartition(".")[0]), NORMS) for n in names)
