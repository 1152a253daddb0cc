"""Data from a function in a user's own file."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import call, refuse_options, user_object
from fedsmoo.data.check import check_own_classes
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.forms import read_data

OWN, KIND = "path/to/file.py:function", "data set"
OWN_NAME = re.compile(r"(?!text:|leaf:|table:).*\.py:[^:]*", re.DOTALL)


def is_own(name: str) -> bool:
    """Return whether a data set's name is that of a function in a user's file; ``text:a.py`` is a text."""
    return OWN_NAME.fullmatch(name) is not None


def takes_seed(function: Callable[..., Any]) -> bool:
    """Return whether a function has an argument ``seed``."""
    try:
        return "seed" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def own_data(spec: str, seed: int, options: Mapping[str, Any]) -> Dataset:
    """Return what the function in a user's file makes, in any form of data, checked and named by the file."""
    make = bind_options(spec, options)
    found = call(make, f"{KIND} {spec!r}", **({"seed": seed} if takes_seed(make) else {}))
    data = read_data(found, spec, f"what {KIND} {spec!r} returned").renamed(spec)
    if isinstance(found, Dataset):  # other forms were looked at when they were read
        check_own_classes(data)
    return data


def bind_options(spec: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function in a user's file with its options bound; refuse what cannot be called with a seed at most."""
    make, what = user_object(spec, KIND), f"{KIND} {spec!r}"
    if isinstance(make, type) or not callable(make):
        kind = "class" if isinstance(make, type) else type(make).__name__
        raise FedsmooError(f"{what} is a {kind}, but must be a function of (seed) or of nothing")
    refuse_options(make, what, (), options)
    try:
        inspect.signature(make).bind(**{**options, **({"seed": 0} if takes_seed(make) else {})})
    except TypeError as e:
        raise FedsmooError(f"{what} must be a function of (seed) or of nothing: {e}") from None
    return functools.partial(make, **options)
