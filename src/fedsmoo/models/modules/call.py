"""Call a module with other parameters than its own, as ``torch.func.functional_call`` does, in a fraction of its time.

That one looks up every name anew, for buffers that a pass may exchange; parameters only have to be put in their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def has_two_names(module: nn.Module) -> bool:
    """Return whether a part of a module is registered twice, as ``self.second = self.first`` does."""
    return len(list(module.named_modules(remove_duplicate=False))) > len(list(module.modules()))


@contextmanager
def holding(module: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Let a module hold these tensors, parameters and buffers; afterwards they are what became of them.

    ``functional_call`` leaves its tensors in a part with two names: it puts back under the second what it found there,
    which is what it had put there under the first.
    """
    places = {
        f"{path}.{name}".lstrip("."): (own, name)
        for path, part in module.named_modules(remove_duplicate=False)
        for own in (part._parameters, part._buffers)
        for name, t in own.items()
        if t is not None
    }
    given = {id(own[name]): tensors[n] for n, (own, name) in places.items() if n in tensors}
    before = [(n, own, name, own[name]) for n, (own, name) in places.items() if id(own[name]) in given]
    try:
        for _, own, name, t in before:
            own[name] = given[id(t)]
        yield
    finally:
        tensors.update({n: own[name] for n, own, name, _ in before if n in tensors})
        for _, own, name, t in before:
            own[name] = t


def call_holding(module: nn.Module, tensors: dict[str, Tensor], args: Any, named: Any) -> Any:
    """Return ``module(*args, **named)`` with these tensors, which afterwards are what became of them."""
    with holding(module, tensors):
        return module(*args, **named)


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


def norms_of(module: nn.Module) -> list[str]:
    """Return the names of the parameters of normalisation layers: of all whose class is called a norm.

    >>> norms_of(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    ['1.weight', '1.bias']
    """
    parts = [(n, m) for n, m in module.named_modules() if "norm" in type(m).__name__.lower()]
    return [f"{where}.{n}".lstrip(".") for where, m in parts for n, _ in m.named_parameters(recurse=False)]
