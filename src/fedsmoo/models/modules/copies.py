"""Copies of a module that share nothing with it, and what no copy would keep: hooks on parameters, shared memory."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from fedsmoo.core.errors import FedsmooError, first_line


def copied(module: nn.Module, whole: Any = None) -> Any:
    """Return a copy of a module, or of what holds it, that shares nothing with it; tied parameters stay tied."""
    kept = [v for part in module.modules() for v in vars(part).values() if isinstance(v, Tensor)]
    # What a module keeps of its last pass hangs on that pass, which cannot be copied: its numbers can.
    memo = {id(v): v.detach().clone() for v in kept if v.grad_fn is not None}
    for b in (b for b in module.buffers() if is_lazy(b)):  # PyTorch can copy lazy parameters, but not buffers
        made: Any = UninitializedBuffer
        memo[id(b)] = made(device=b.device, dtype=b.dtype, persistent=getattr(b, "persistent", True))
    try:
        return copy.deepcopy(module if whole is None else whole, memo)
    except Exception as e:  # the user's own code
        raise FedsmooError(
            f"the model {type(module).__name__} cannot be copied: {type(e).__name__}: {first_line(e)}; keep what "
            "copy.deepcopy cannot copy out of it"
        ) from e


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a user's module for a run; refuse one that is another one when it is copied."""
    refuse_lost(module)
    made: nn.Module = copied(module)
    return made


def refuse_lost(module: nn.Module) -> None:
    """Refuse a module whose parameters would be others in a run: clients have vectors in place of them.

    Raises:
        FedsmooError: if one does not fit (see :func:`refuse_unfit`), has a sparse gradient, or lies in the memory of
            another one; if a buffer is sparse; if one of either has no values; or if a part was scripted, so that
            nothing can take the place of its tensors.
    """
    for where, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise FedsmooError(
                f"the model has been scripted or traced by torch.jit at {where or 'the top'!r}: give it as a plain "
                "nn.Module"
            )
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise FedsmooError(
                f"{type(part).__name__} at {where or 'the top'!r} has sparse gradients, which no vector holds: set "
                "sparse=False, which gives the same numbers"
            )
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name in (n for n, t in tensors if t.is_meta):
            raise FedsmooError(
                f"the {kind} {name!r} of {type(module).__name__} is on the device 'meta' and has no values: make the "
                "model on the CPU"
            )
    for name, b in module.named_buffers():
        if b.layout is not torch.strided or b.is_nested:
            raise FedsmooError(
                f"the buffer {name!r} of {type(module).__name__} is {'nested' if b.is_nested else 'sparse'}, which no "
                "run carries on: make it a plain attribute, self.NAME = tensor, or a dense buffer"
            )
    named = {n: p for n, p in module.named_parameters() if not is_lazy(p)}
    for name, p in named.items():
        refuse_unfit(p, f"the parameter {name!r} of {type(module).__name__}")
    met: dict[int, list[tuple[str, Tensor]]] = {}  # by their memory
    for name, t in {n: t for n, t in {**named, **aliases(module)}.items() if has_memory(t)}.items():
        others = met.setdefault(t.untyped_storage().data_ptr(), [])
        same = next((n for n, o in others if (is_trained(o) or is_trained(t)) and overlap(o, t)), None)
        if same is not None:
            tied = isinstance(t, nn.Parameter) and isinstance(named.get(same), nn.Parameter)
            hint = f"tie them as one, self.{name} = self.{same}" if tied else f"clone it, or read self.{same} instead"
            raise FedsmooError(
                f"{same!r} and {name!r} of {type(module).__name__} lie in one memory, but would be two in training: "
                f"{hint}"
            )
        others.append((name, t))


def refuse_unfit(p: nn.Parameter, what: str) -> None:
    """Refuse a parameter of complex numbers, or one with a hook on its gradient."""
    if p.requires_grad and p.is_complex():
        raise FedsmooError(
            f"{what} is complex, but vectors hold real numbers: keep its parts, [..., 2], and write "
            "torch.view_as_complex in forward"
        )
    if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
        raise FedsmooError(
            f"{what} has a hook on its gradient, which would never be called: change the weight in forward "
            "instead, as torch.nn.utils.prune does with a mask"
        )


def is_trained(t: Tensor) -> bool:
    """Return whether a tensor is a parameter that is not frozen."""
    return isinstance(t, nn.Parameter) and t.requires_grad


def aliases(module: nn.Module) -> dict[str, Tensor]:
    """Return tensors of a module that are no parameters, by name; but what a hook makes anew before every pass."""
    found: dict[str, Tensor] = {}
    for where, part in module.named_modules():
        trained = dict(part.named_parameters(recurse=False))
        for name, v in {**vars(part), **dict(part.named_buffers(recurse=False))}.items():
            made = f"{name}_orig" in trained  # as torch.nn.utils.spectral_norm does
            if isinstance(v, Tensor) and not isinstance(v, nn.Parameter) and not made:
                found[f"{where}.{name}".lstrip(".")] = v
    return found


def has_memory(t: Tensor) -> bool:
    """Return whether a tensor's numbers lie in a block of memory: not of a lazy, sparse, nested, empty or meta one."""
    return (
        not is_lazy(t) and t.layout is torch.strided and not t.is_nested and t.device.type != "meta" and t.numel() > 0
    )


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors in one block of memory have some of it in common; neighbours have not."""

    def place(t: Tensor) -> tuple[int, int]:
        last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
        begin = int(t.storage_offset()) * t.element_size()
        return begin, begin + (last + 1) * t.element_size()

    if not (place(a)[0] < place(b)[1] and place(b)[0] < place(a)[1]):
        return False
    if a.element_size() != b.element_size():
        return True
    every = torch.arange(a.untyped_storage().nbytes() // a.element_size())  # columns of one matrix lie in between
    mine, theirs = (every.as_strided(t.shape, t.stride(), t.storage_offset()).flatten() for t in (a, b))
    return bool(torch.zeros_like(every, dtype=torch.bool).index_fill(0, mine, True)[theirs].any())
