"""The rule of operators that have a client axis already: further clients are more clients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


def front(t: Tensor, axis: int | None, clients: int) -> Tensor:
    """Return a tensor with its client axis first; one that all clients share is expanded."""
    return t.expand(clients, *t.shape) if axis is None else t.movedim(axis, 0)


def folds_clients(operator: Any) -> None:
    """Let ``vmap`` take an operator whose tensors all have the client axis first: its axis becomes part of that one."""

    def rule(info: Any, axes: Any, *given: Any) -> tuple[Any, Any]:
        def whole(v: Any, axis: int | None) -> Any:
            if not isinstance(v, Tensor):
                return v
            return front(v, axis, info.batch_size).flatten(0, 1)

        found = operator(*(whole(v, axis) for v, axis in zip(given, axes, strict=True)))
        found = tree_map_only(Tensor, lambda v: v.unflatten(0, (info.batch_size, -1)), found)
        return found, tree_map_only(Tensor, lambda v: 0, found)

    torch.library.register_vmap(operator, rule)
