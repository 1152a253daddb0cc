"""Declare the fields of a dataclass of settings: help, choices and bounds beside each; and check their values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.hyper.options import convert, refuse_outside
from fedsmoo.core.hyper.schedule import Schedule, is_schedule
from fedsmoo.core.user_code import is_in_file

OWN = "path/to/file.py"
LARGEST = 2**63 - 1  # whole number of a setting
# What a user may bring in a file, each beside a setting with its options: algorithm, algorithm_options.
AROUND = ("local_optimizer", "local_schedule", "privacy", "compression", "attack")
BROUGHT = ("algorithm", "model", "dataset", "partition", "loss", *AROUND, "sampling")


def setting(
    default: Any,
    help: str,
    choices: tuple[str, ...] = (),
    group: str = "training",
    within: str = "",
    free: tuple[str, ...] = (),
    quiet: bool = False,
) -> Any:
    """Declare a field: its meaning, the words or the interval it may take, and the panel of ``--help`` it is listed in.

    ``free`` names what may differ in it: a ``run``, which is the same whatever it is; the runs of one ``batch``; the
    runs of one ``line`` of a table or a page, which shows their mean. A ``quiet`` setting is written into files only
    where it is not the default, so that files of before and after there was one agree.
    """
    about = {"help": help, "choices": choices, "group": group, "within": within, "free": free, "quiet": quiet}
    return field(default=default, metadata=about)


def around(help: str, names: str) -> Any:
    """Declare what may be put around any method; the first of the names is the method as it is."""
    words = tuple(names.split())
    return setting(words[0], f"{help}: a name, or {OWN}:Class", words, quiet=True)


def options_of(what: str, group: str = "training") -> Any:
    """Declare the options of something that another setting names; runs that differ in them may share a batch."""
    return setting(None, f"options of {what}", group=group, free=("batch",), quiet=True)


def refuse_beyond(values: dict[str, Any]) -> None:
    """Refuse whole numbers that generators, tensors and SQL do not take.

    Apart from the check of every value, so that folders which hold such a number can still be read.
    """
    for name, value in values.items():
        if isinstance(value, int) and value > LARGEST:
            raise FedsmooError(f"{name} is {value}, but must be at most {LARGEST}")


def refuse_twice(whose: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Refuse an option that is given in two ways with two values: one of them would be lost."""
    for name in (n for n, v in second.items() if n in first and first[n] != v and str(first[n]) != str(v)):
        raise FedsmooError(f"{whose}.{name} is given twice, as {first[name]!r} and as {second[name]!r}: choose one")


@cache
def kind_of(cls: type, name: str) -> tuple[type, bool]:
    """Return the plain type of a field, and whether it may be none."""
    hint = get_type_hints(cls)[name]
    options = [t for t in get_args(hint) if t is not type(None)]
    if get_origin(hint) is not dict and options:
        return options[0], True
    return get_origin(hint) or hint, get_origin(hint) is dict


def checked_setting(cls: type, name: str, value: Any) -> Any:
    """Return a value in its field's own type, text (from a command line) converted; ``FedsmooError`` if it is wrong."""
    kind, optional = kind_of(cls, name)
    if kind is dict:
        if value is not None and not isinstance(value, dict):
            raise FedsmooError(f"{name} is {value!r}, but must be a table of options")
        return {n: str(v) if isinstance(v, Schedule) else copy.deepcopy(v) for n, v in (value or {}).items()}
    if name == "lr" and is_schedule(value):
        raise FedsmooError(
            f"lr is {value!r}, but must be a number: lr_decay multiplies it after every round, and a callback sets it "
            "by state.set(lr=...)"
        )
    value = convert(name, value, kind, optional)
    if value is not None and not (name in BROUGHT and is_in_file(value)):
        refuse_outside(name, value, cls.__dataclass_fields__[name].metadata)  # type: ignore[attr-defined]
    return value
