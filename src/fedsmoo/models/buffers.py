"""The buffers of a module: tensors that it keeps beside its parameters, and that no gradient trains.

What a pass in train mode leaves as it was is a constant (position numbers, tables of rotary angles, masks): it belongs
to the model as frozen parameters do. What it changes are statistics (those of BatchNorm): clients have their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping

import torch
from torch import Tensor, nn

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.layout import Layout


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


def written(module: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return which buffers a pass has changed, of a layer of normalisation all or none.

    Values are compared: PyTorch's kernels write to running means without a note of it. A mean may stay what it was by
    chance, and then the layer's others tell.
    """
    found = {n for n in before if after[n]._version or not torch.equal(after[n], before[n])}
    for where, part in module.named_modules(remove_duplicate=False):
        own = {f"{where}.{n}".lstrip(".") for n, b in part._buffers.items() if b is not None}
        if isinstance(part, nn.modules.batchnorm._NormBase) and own & found:
            found |= own
    return [n for n in before if n in found]


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
    """Return which buffers a pass wrote to, or exchanged for others; those in ``before`` had never been written to."""

    def exchanged(new: Tensor, old: Tensor) -> bool:
        if new is old:
            return False
        inside = torch._C._functorch.is_functorch_wrapped_tensor(new)  # of vmap, where values have no one answer
        return inside or new.shape != old.shape or not torch.equal(new, old)

    return [n for n in names if before[n]._version or exchanged(after[n], before[n])]


def hand_back(
    names: Collection[str], given: Mapping[str, Tensor], before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> None:
    """End a pass: who has ``given`` buffers finds there what became of them, and all others must be as they were.

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


class Statistics:
    """The buffers that a pass in train mode changes, as one vector of S numbers; counts and truths are numbers there.

    Args:
        kept: buffers by name; one that several modules share has several names.
        names: those that change.

    Raises:
        FedsmooError: if one of them holds complex numbers.
    """

    def __init__(self, kept: Mapping[str, Tensor], names: Collection[str]) -> None:
        once: dict[int, str] = {}
        self.names = {n: once.setdefault(id(t), n) for n, t in kept.items() if n in names}
        self.kinds = {n: kept[n].dtype for n in once.values()}
        for name in (n for n, kind in self.kinds.items() if kind.is_complex):
            raise FedsmooError(f"the model's buffer {name!r} changes and is complex: keep its parts in two real ones")
        self.layout = Layout({n: tuple(kept[n].shape) for n in self.kinds})
        self.first = self.join(kept, torch.float64)  # as they were when the model was wrapped

    @property
    def size(self) -> int:
        return self.layout.size

    def join(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the statistics among buffers as a vector."""
        return self.layout.join({n: parts[n].detach().to(dtype) for n in self.kinds})

    def split(self, v: Tensor) -> dict[str, Tensor]:
        """Return a vector ``[.., S]`` as buffers, in types of their own; nobody else has them."""

        def own(t: Tensor, kind: torch.dtype) -> Tensor:
            return t.clone() if kind.is_floating_point else t.round().to(kind)

        parts = {n: own(t, self.kinds[n]) for n, t in self.layout.split(v).items()}
        return {n: parts[first] for n, first in self.names.items()}

    def spare(self, kept: Mapping[str, Tensor], like: Tensor) -> dict[str, Tensor]:
        """Return copies for a pass after which nobody asks for them; inside ``vmap`` of each client, as ``like`` is."""
        mark = torch.zeros_like(like.reshape(-1)[0]) == 0
        parts = {n: torch.where(mark, kept[n], kept[n]) for n in self.kinds}
        return {n: parts[first] for n, first in self.names.items()}


def refuse_changing(names: Collection[str]) -> None:
    """Refuse buffers that change in evaluation: what a model answers would depend on what it was asked before."""
    for name in names:
        raise FedsmooError(
            f"the model's buffer {name!r} changes in evaluation, so that answers would depend on those before: write "
            "to it in train mode only; if only the first pass fills it, call the model once on samples before the run"
        )


def refuse_batch_norm(module: nn.Module) -> None:
    """Refuse normalisation by the batch at hand in evaluation, too: answers would depend on who else is asked."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            raise FedsmooError(
                f"{type(part).__name__} at {name or 'the top'!r} has no running statistics, so that what a sample is "
                "answered depends on those evaluated with it: set track_running_stats=True, or use nn.GroupNorm"
            )
