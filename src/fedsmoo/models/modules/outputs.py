"""The outputs of a model among all that its module returns: a tensor, or one in a tuple, a dict or a dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedsmoo.core.errors import FedsmooError, unknown

LOGITS = "logits"


def picked(out: Any, output: str | None, module: nn.Module) -> Tensor:
    """Return the tensor of outputs in what a module returned.

    Without a name in ``output`` that is the tensor itself; what is called ``logits``; the first tensor of a tuple or a
    list; the only tensor of anything else.

    Args:
        out: a tensor, a tuple, a list, a mapping, a dataclass, or an object with attributes.
        output: the name or, as text, the position of the outputs in it.
        module: which returned it.

    Raises:
        FedsmooError: if there is no such tensor, or if there are several and none is named.
    """
    if output is not None:
        return _named(out, output, module)
    if isinstance(out, Tensor):
        return out
    parts = parts_of(out)
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    if LOGITS in tensors:
        return tensors[LOGITS]
    if not tensors:
        raise FedsmooError(
            f"the model {type(module).__name__} returns {_kind(out)}, but must return a tensor of outputs, or a tuple, "
            "a dict or a dataclass that holds one"
        )
    first, *others = tensors
    if others and not isinstance(out, tuple | list):
        raise FedsmooError(
            f"the model {type(module).__name__} returns {_kind(out)} with the tensors {', '.join(tensors)}, none of "
            f"them called {LOGITS}: say which one holds the outputs, output={first!r}"
        )
    return tensors[first]


def unrounded(out: Tensor) -> Tensor:
    """Return outputs or features for a loss to read: in float32 where a CPU made them in bf16.

    A GPU's autocast computes losses in float32 by itself; a CPU's leaves softmax in bf16.
    """
    rounded = out.dtype == torch.bfloat16 and out.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return out.float() if rounded else out


def _named(out: Any, output: str, module: nn.Module) -> Tensor:
    """Return the part of what a module returned that has this name or position."""
    model = f"the model {type(module).__name__}"
    if isinstance(out, Tensor):
        raise FedsmooError(f"output is {output!r}, but {model} returns one tensor: leave output out")
    parts = parts_of(out)
    if output not in parts and output.isdecimal() and int(output) < len(parts):
        output = list(parts)[int(output)]
    if output not in parts:
        raise unknown(f"output of {model}, which returns {_kind(out)}", output, parts)
    if not isinstance(parts[output], Tensor):
        tensors = [name for name, part in parts.items() if isinstance(part, Tensor)]
        rest = f": take {' or '.join(tensors)}" if tensors else ""
        raise FedsmooError(f"output is {output!r}, but there {model} returns {_kind(parts[output])}, no tensor{rest}")
    return parts[output]


def parts_of(out: Any) -> dict[str, Any]:
    """Return what a module returned by name, or by position where there are no names.

    >>> parts_of({"logits": 1, "state": 2}), parts_of((5, 6))
    ({'logits': 1, 'state': 2}, {'0': 5, '1': 6})
    """
    if isinstance(out, Mapping):
        return {str(name): part for name, part in out.items()}
    if isinstance(out, tuple | list):
        names = getattr(out, "_fields", None) or map(str, range(len(out)))
        return dict(zip(names, out, strict=True))
    if dataclasses.is_dataclass(out) and not isinstance(out, type):
        return {f.name: getattr(out, f.name) for f in dataclasses.fields(out)}
    return dict(getattr(out, "__dict__", {}))


def _kind(out: Any) -> str:
    name = type(out).__name__
    return f"an empty {name}" if isinstance(out, tuple | list | Mapping) and not len(out) else f"a {name}"
