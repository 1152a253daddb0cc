"""What settings put around a method, by name or from a user's file: an optimiser, and a rate within the round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedsmoo.algorithms.around import Around
from fedsmoo.algorithms.optimisers import OPTIMISERS
from fedsmoo.algorithms.rates import RATES
from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.core.hyper.options import read_options
from fedsmoo.core.user_code import call, is_in_file, user_object

# By setting: the names there are, and the one that leaves a method as it is. The first is put around the method first.
CHOICES: dict[str, tuple[Mapping[str, type[Around]], str]] = {
    "local_optimizer": (OPTIMISERS, "sgd"),
    "local_schedule": (RATES, "constant"),
}


def choice_class(setting: str, spec: str) -> type[Around] | None:
    """Return what a setting puts around a method; ``None`` for the name that leaves the method as it is."""
    known, plain = CHOICES[setting]
    if is_in_file(spec):
        cls = user_object(spec, setting)
        if not (isinstance(cls, type) and issubclass(cls, Around)):
            raise FedsmooError(f"{setting} {spec!r} is not a class derived from fedsmoo.Around")
        return cls
    if spec != plain and spec not in known:
        raise unknown(setting, spec, [plain, *known])
    return known.get(spec)


def options_of_choice(cls: type[Around]) -> dict[str, Any]:
    """Return the options of what is put around a method, with their defaults."""
    return {f.name: f.default for f in dataclasses.fields(cls) if f.name != "inner"}


def put_around(inner: Algorithm, setting: str, spec: str, options: Mapping[str, Any]) -> Algorithm:
    """Return the method inside what a setting names, made with options; wrong names, types and ranges are refused."""
    cls = choice_class(setting, spec)
    if cls is None:
        if options:
            raise FedsmooError(f"{setting} {spec!r} has no options: leave out {', '.join(options)}")
        return inner
    values = read_options(cls, options, list(options_of_choice(cls)))
    return call(cls, f"{setting} {spec!r} cannot be made", inner, **values)
