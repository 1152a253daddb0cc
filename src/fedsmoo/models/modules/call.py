"""Call a module with other parameters than its own, as ``torch.func.functional_call`` does, in a fraction of its time.

That one looks up every name anew, for buffers that a pass may exchange; parameters only have to be put in their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

# The way to a part of a module, and the parameters that it holds: their names there, and in the module's vector.
Places = list[tuple[tuple[str, ...], list[tuple[str, str]]]]


def places_of(module: nn.Module) -> Places | None:
    """Return where a module holds its parameters, tied ones in every place; ``None`` for scripted parts."""
    first = {id(p): name for name, p in module.named_parameters()}
    found: Places = []
    for path, part in module.named_modules():
        if type(part._parameters) is not dict:
            return None
        held = [(own, first[id(p)]) for own, p in part._parameters.items() if p is not None]
        if held:
            found.append((tuple(path.split(".")) if path else (), held))
    return found


def call_with(module: nn.Module, places: Places, tensors: Mapping[str, Tensor], args: Any, named: Any) -> Any:
    """Return ``module(*args, **named)`` with these tensors for its parameters, which it has back afterwards."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, held in places:
            part: Any = module
            for step in path:
                part = part._modules[step]
            own = part._parameters
            for name, first in held:
                if (new := tensors.get(first)) is not None:
                    before.append((own, name, own[name]))
                    own[name] = new
        return module(*args, **named)
    finally:
        for own, name, old in before:
            own[name] = old
