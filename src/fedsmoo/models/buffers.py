"""The buffers of a module: tensors that it keeps beside its parameters, and that no gradient trains.

What a pass in train mode leaves as it was is a constant (position numbers, tables of rotary angles, masks): it belongs
to the model as frozen parameters do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping

import torch
from torch import Tensor, nn

from fedsmoo.core.errors import FedsmooError


def like(t: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a frozen tensor where it is needed and in the type of a run; whole numbers and truths stay what they are.

    >>> like(torch.arange(2), torch.device("cpu"), torch.float64).dtype
    torch.int64
    """
    if t.is_complex():
        dtype = dtype.to_complex()
    return t.to(device, dtype if t.is_floating_point() or t.is_complex() else t.dtype)


def all_like(kept: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return frozen tensors as :func:`like` does; one that has several names stays one."""
    once = {id(t): like(t, device, dtype) for t in kept.values()}
    return {n: once[id(t)] for n, t in kept.items()}


def cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Put a module's numbers into a type, as ``module.to(dtype)`` does, which makes real numbers of complex ones."""
    module._apply(lambda t: like(t, t.device, dtype))


def copies(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's buffers, by name; one that several modules share has several names."""
    once = {id(b): b.detach().clone() for b in module.buffers()}
    return {n: once[id(b)] for n, b in module.named_buffers(remove_duplicate=False)}


def persistent(module: nn.Module) -> list[str]:
    """Return the names of the buffers that a state dict of the module holds."""
    return [
        f"{place}.{name}".lstrip(".")
        for place, part in module.named_modules(remove_duplicate=False)
        for name, b in part._buffers.items()
        if b is not None and name not in part._non_persistent_buffers_set
    ]


def place(module: nn.Module, kept: Mapping[str, Tensor]) -> None:
    """Put what is kept into a module itself: a hand-batched forward reads its own buffers."""
    for where, part in module.named_modules():
        part._buffers.update({n: kept[f"{where}.{n}".lstrip(".")] for n, b in part._buffers.items() if b is not None})


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
    """Return which buffers a pass wrote to or exchanged; those in ``before`` had never been written to."""
    return [n for n in names if after[n] is not before[n] or before[n]._version]


def hand_back(
    names: Collection[str], given: Mapping[str, Tensor], before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> None:
    """End a pass: who ``given`` a buffer finds its new value there, and nobody's buffers must be as they were.

    Raises:
        FedsmooError: if a buffer has changed that nobody carries on: the model is not what it was examined as.
    """
    if isinstance(given, MutableMapping):
        given.update({n: after[n] for n in names if n in given})
    if torch.compiler.is_compiling():
        return
    found = changed(before, after, [n for n in names if n not in given])
    if found:
        raise FedsmooError(
            f"the model's buffer {found[0]!r} changes in some passes only, so that clients would not know whose it is: "
            "write to it in every pass in train mode and in no other, or make it a plain attribute"
        )


def refuse_changing(wrote: Mapping[bool, Collection[str]]) -> None:
    """Refuse buffers that change, by whether in train mode: nobody would know whose they are."""
    for training, names in wrote.items():
        for name in names:
            when = "while it trains" if training else "in evaluation"
            raise FedsmooError(
                f"the model's buffer {name!r} changes {when}, and clients cannot average it: keep it constant, or "
                "remove it"
            )


def refuse_batch_norm(module: nn.Module) -> None:
    """Refuse running statistics, which have no place in a flat vector that clients average."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and (
            part.track_running_stats or "Batch" in type(part).__name__
        ):
            raise FedsmooError(
                f"{type(part).__name__} at {name or 'the top'!r}: running statistics of heterogeneous clients cannot "
                "be averaged; use nn.GroupNorm instead (for a ResNet, GroupNorm with 2 groups)"
            )
