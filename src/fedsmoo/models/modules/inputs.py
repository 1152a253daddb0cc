"""What a module is called with: the samples as they are, or taken apart into inputs with names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedsmoo.core.errors import FedsmooError, FedsmooWarning

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments, and arguments by name


def arguments(x: Tensor, names: tuple[str, ...] | None, axis: int = 1) -> Call:
    """Return what a module is called with: ``x``, or the inputs that lie on one of its axes, by their names."""
    if names is None:
        return (x,), {}
    return (), dict(zip(names, x.unbind(axis), strict=True))


def refuse_unknown_inputs(module: nn.Module, names: tuple[str, ...] | None) -> None:
    """Refuse names of inputs that the module's ``forward`` does not take, and a ``forward`` that needs others."""
    if names is None:
        return
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # compiled, and silent about it
        return
    model = f"the model {type(module).__name__}"
    named = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in names:
        if name not in named and not takes_any:
            raise FedsmooError(
                f"{model} takes no input named {name!r}, as the data has it: its forward takes {', '.join(named)}"
            )
        if name not in named and named:  # a forward that names none hands all of them on
            note = f"the forward of {type(module).__name__} does not name the input {name!r}: it may pay no heed to it"
            warnings.warn(note, FedsmooWarning, stacklevel=2)
    missing = [n for n in named if parameters[n].default is inspect.Parameter.empty and n not in names]
    if missing:
        raise FedsmooError(f"{model} needs an input {missing[0]!r}, but the inputs of the data are {', '.join(names)}")


def asks_whether_traced(module: nn.Module) -> bool:
    """Return whether a module looks at values to save work, unless it is traced: HuggingFace's do, at masks."""
    return any(type(part).__module__.startswith("transformers.") for part in module.modules())


@contextmanager
def unseen(x: Tensor) -> Iterator[None]:
    """Let modules that ask believe that they are traced, if ``x`` is of many clients: no value of it can be looked at.

    A mask that keeps everything is left out by such a module, if it may look; with it the outputs are the same.
    """
    flag, here = "_is_compiling_flag", torch.compiler
    if not hasattr(here, flag) or not torch._C._functorch.is_functorch_wrapped_tensor(x):
        yield
        return
    setattr(here, flag, True)
    try:
        yield
    finally:
        setattr(here, flag, False)
