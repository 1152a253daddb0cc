"""Declare options: dataclass fields with their meaning, words and intervals beside them. Knows no tensors.

Hyper-parameters of methods, options of measurements and the settings of a run are such fields; the command line derives
its flags from them, and must do so before PyTorch is imported.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache
from numbers import Real
from typing import Any, TypeVar, get_args, get_type_hints

from fedsmoo.core.blame import declared_at
from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.hyper.schedule import Schedule, is_schedule

T = TypeVar("T")
KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def option(
    default: Any,
    help: str,
    choices: tuple[str, ...] = (),
    within: str = "",
    positional: bool = False,
    counts: bool = False,
) -> Any:
    """Declare a hyper-parameter: a dataclass field with its meaning beside it, which the command line prints.

    ``choices`` are the words it may be; ``within`` is the interval of the numbers it may be, such as ``"[0, 1)"``.
    Those of the methods here are given by name, but for the ``positional`` ones. One that ``counts`` how often a method
    does something is a number in a loop: runs that differ in it do not share a batch.
    """
    if within:
        interval_ends(within)
    meta = {"help": help, "choices": choices, "within": within, "positional": positional, "counts": counts}
    return field(default=default, metadata=meta)


def interval_ends(within: str) -> list[str]:
    """Return the ends of an interval as they are written; refuse text that is no interval.

    >>> interval_ends("[0, inf)")
    ['0', 'inf']
    """
    words = [word.strip() for word in within[1:-1].split(",")]
    try:
        low, high = (float(word) for word in words)
    except ValueError:
        low, high = math.nan, math.nan
    if within[:1] not in ("[", "(") or within[-1:] not in ("]", ")") or not low <= high:
        raise FedsmooError(f"within={within!r} is not an interval: write it as '[0, 1)' or '(0, inf)'")
    return words


def in_interval(value: Any, within: str) -> bool:
    """Return whether a number lies in an interval; nan lies in none."""
    low, high = (float(end) for end in interval_ends(within))
    return low < value < high or (value == low and within[0] == "[") or (value == high and within[-1] == "]")


def interval_in_words(within: str) -> str:
    """Return an interval in words.

    >>> interval_in_words("[0, 1)"), interval_in_words("(0, inf)")
    ('at least 0 and below 1', 'above 0')
    """
    low, high = interval_ends(within)
    below = "" if high == "inf" else f" and {'below' if within[-1] == ')' else 'at most'} {high}"
    return ("above " if within[0] == "(" else "at least ") + low + below


def refuse_outside(name: str, value: Any, meta: Mapping[str, Any]) -> None:
    """Refuse what a field's ``choices`` or ``within`` do not allow."""
    choices, within = meta.get("choices"), meta.get("within")
    if choices and value not in choices:
        raise unknown(f"value of {name}", str(value), choices)
    if not within:
        return
    if isinstance(value, Schedule):
        for extreme in value.extremes:
            refuse_outside(f"{name} ({value})", extreme, meta)
        return
    if not isinstance(value, Real) or isinstance(value, bool):
        raise FedsmooError(f"{name} is {value!r}, but must be a number")
    if not in_interval(value, within):
        raise FedsmooError(
            f"{name} is {value}, but must be {'finite' if value == math.inf else interval_in_words(within)}"
        )


def once_per_class(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a function of a class; type checkers think that ``cache`` refuses classes whose objects have no hash."""
    return cache(function)


@once_per_class
def kinds(cls: Any) -> dict[str, tuple[type, bool]]:
    """Return the plain type of each field, and whether it may be none, from its hint or else its default."""
    try:
        hints = get_type_hints(cls)
    except (NameError, TypeError):  # names that only a type checker knows
        hints = {}
    out = {}
    for f in dataclasses.fields(cls):
        hint = hints.get(f.name, type(f.default))
        options = get_args(hint) or (hint,)
        plain = [t for t in options if t is not type(None)]
        if hint is Any and isinstance(f.default, bool):
            plain = [bool]
        if len(plain) == 1 and plain[0] in KINDS:
            out[f.name] = plain[0], type(None) in options
    return out


@once_per_class
def ignored_values(cls: Any) -> tuple[tuple[type, str, str], ...]:
    """Return values that a class gives hyper-parameters and ``dataclass`` ignores: the class, the name, what to do.

    An ``option`` in a class without ``@dataclass`` is no field; and a new default without a type hint, or in such a
    class, leaves that of the parent class in force.
    """
    found = [
        (owner, name, f"{name} is not taken: write @dataclass(frozen=True) above the class")
        for owner in cls.__mro__
        for name, value in vars(owner).items()
        if isinstance(value, dataclasses.Field)
    ]
    for f in dataclasses.fields(cls):
        owner = next((c for c in cls.__mro__ if f.name in vars(c)), cls)
        value = inspect.getattr_static(cls, f.name, f.default)
        plain = not isinstance(value, dataclasses.Field) and not hasattr(value, "__get__")
        if plain and repr(value) != repr(f.default):
            text = f"{f.name} = {value!r} is not taken, it is {f.default!r}: write it with its type, such as "
            text += f"{f.name}: {type(value).__name__} = {value!r}, and @dataclass(frozen=True) above the class"
            found.append((owner, f.name, text))
    return tuple(found)


def refuse_ignored_values(cls: Any) -> None:
    """Refuse a class some of whose hyper-parameters ``dataclass`` ignores, with their file and line."""
    if found := ignored_values(cls):
        raise FedsmooError("\n".join(f"{declared_at(owner, name)}: {text}" for owner, name, text in found))


WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def convert(name: str, value: Any, kind: type, optional: bool) -> Any:
    """Return ``value`` as a ``kind``, or ``None`` for ``none`` where that is allowed; refuse anything else."""
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        if optional:
            return None
        raise FedsmooError(f"{name} is none, but must be {KINDS[kind]}")
    if kind is str and isinstance(value, str):
        return str(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is bool and isinstance(value, str) and value.lower() in WORDS:
        return WORDS[value.lower()]
    if kind in (int, float) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            number = kind(value)
            if number == number and (isinstance(value, str) or number == value):  # no NaN, and 3.5 is no 3
                return number
    raise FedsmooError(f"{name} is {value!r}, but must be {KINDS[kind]}")


def read_hyper_parameter(name: str, value: Any, kind: type, optional: bool) -> Any:
    """Return a hyper-parameter of a kind: a number may be a schedule, which is a table or text in a config."""
    if kind not in (int, float) or not is_schedule(value):
        return convert(name, value, kind, optional)
    try:
        return Schedule.read(value)
    except FedsmooError as e:
        raise FedsmooError(f"{name}: {e}") from None


def read_options(cls: Any, options: Mapping[str, Any], known: Collection[str] | None = None) -> dict[str, Any]:
    """Return the values of a class's fields that options spell; unknown names and wrong types are refused."""
    known, kind = [f.name for f in dataclasses.fields(cls)] if known is None else known, kinds(cls)
    for name in options:
        if name not in known:
            raise unknown(f"hyper-parameter of {cls.__name__}", name, known)
    return {n: read_hyper_parameter(n, v, *kind[n]) if n in kind else v for n, v in options.items()}
