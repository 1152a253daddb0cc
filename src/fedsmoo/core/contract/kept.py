"""What a method could keep outside of its vectors: on itself, on its class, in variables of its file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.blame import ours

HOLDERS = (list, dict, set, deque, bytearray)
LONG = 1000  # parts of a table: more are counted


def kept(algorithm: Algorithm) -> dict[str, str]:
    """Return what a user's method can write to from one call to the next, as text, by where it is."""
    found = {f"self.{n}": shown(v) for n, v in vars(algorithm).items() if isinstance(v, HOLDERS)}
    for cls in type(algorithm).__mro__:
        functions = [f for f in vars(cls).values() if isinstance(f, FunctionType) and not ours(f.__code__.co_filename)]
        if functions or not cls.__module__.startswith(("fedsmoo.", "builtins")):
            found |= {f"{cls.__name__}.{n}": shown(v) for n, v in vars(cls).items() if lasts(n, v)}
        for function in functions:
            found |= {n: shown(v) for n, v in outside(function).items() if lasts(n, v) or is_theirs(v, function)}
    return found


def lasts(name: str, value: Any) -> bool:
    """Return whether something may be written to: a container, or a number that may be exchanged."""
    return not name.startswith("__") and isinstance(value, (*HOLDERS, int, float))


def is_theirs(value: Any, function: Callable[..., Any]) -> bool:
    """Return whether something is an object of a class in a function's own file."""
    plain = not isinstance(value, type | FunctionType | ModuleType | Algorithm)
    return plain and type(value).__module__ == function.__module__ and hasattr(value, "__dict__")


def outside(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function reads and that are not its own: of its file, and of what is around it."""
    names = {n for code in codes(function.__code__) for n in code.co_names}
    found = {n: function.__globals__[n] for n in names if n in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def codes(code: CodeType) -> Iterator[CodeType]:
    """Return a function's code and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)


def shown(value: Any) -> str:
    """Return something as text that is another one when it changes: of an object what it holds, of a table its begin.

    Clients that a method is asked for here have small numbers, and what is added to a table makes it longer. What has
    no text, by code of the user's own, is not looked at.
    """
    try:
        if isinstance(value, HOLDERS) and len(value) > LONG:
            begin = list(islice(value.items() if isinstance(value, dict) else value, LONG))
            return f"{len(value)}: {begin!r}"
        return repr(vars(value)) if hasattr(value, "__dict__") else repr(value)
    except Exception:
        return ""


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the places whose contents are others."""
    return [n for n, v in after.items() if before.get(n) != v]
