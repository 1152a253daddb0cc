"""What a method could keep outside of its vectors: on itself, on its class, in variables of its file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.blame import path_in_package

HOLDERS = (list, dict, set, deque, bytearray)
LONG = 1000  # parts of a table: more are counted


def writable_state(algorithm: Algorithm) -> dict[str, str]:
    """Return, by where it is, a snapshot of all that a user's method could write to from one call to the next."""
    found = {f"self.{n}": snapshot(v) for n, v in vars(algorithm).items() if isinstance(v, HOLDERS)}
    for cls in type(algorithm).__mro__:
        functions = [
            f for f in vars(cls).values() if isinstance(f, FunctionType) and not path_in_package(f.__code__.co_filename)
        ]
        if functions or not cls.__module__.startswith(("fedsmoo.", "builtins")):
            found |= {f"{cls.__name__}.{n}": snapshot(v) for n, v in vars(cls).items() if is_writable(n, v)}
        for function in functions:
            found |= {
                n: snapshot(v)
                for n, v in outer_variables(function).items()
                if is_writable(n, v) or is_of_same_file(v, function)
            }
    return found


def is_writable(name: str, value: Any) -> bool:
    """Return whether something may be written to: a container, or a number that may be exchanged."""
    return not name.startswith("__") and isinstance(value, (*HOLDERS, int, float))


def is_of_same_file(value: Any, function: Callable[..., Any]) -> bool:
    """Return whether something is an object of a class in a function's own file."""
    plain = not isinstance(value, type | FunctionType | ModuleType | Algorithm)
    return plain and type(value).__module__ == function.__module__ and hasattr(value, "__dict__")


def outer_variables(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function reads and that are not its own: of its file, and of what is around it."""
    names = {n for code in nested_code(function.__code__) for n in code.co_names}
    found = {n: function.__globals__[n] for n in names if n in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def nested_code(code: CodeType) -> Iterator[CodeType]:
    """Return a function's code and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from nested_code(inner)


def snapshot(value: Any) -> str:
    """Return a value as text that differs once the value changes; empty where the user's own ``repr`` fails.

    Of a long container it is the length and the first entries: what a method adds makes it longer, and the clients that
    it is checked with have small numbers.
    """
    try:
        if isinstance(value, HOLDERS) and len(value) > LONG:
            begin = list(islice(value.items() if isinstance(value, dict) else value, LONG))
            return f"{len(value)}: {begin!r}"
        return repr(vars(value)) if hasattr(value, "__dict__") else repr(value)
    except Exception:
        return ""


def changed_places(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the places whose contents are others."""
    return [n for n, v in after.items() if before.get(n) != v]
