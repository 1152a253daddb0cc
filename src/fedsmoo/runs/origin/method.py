"""A method as its run's notes keep it: its options, their defaults, and what travels.

Whoever reads a run uses these notes and runs no code; whoever carries one out makes the method and takes them from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.hyper.options import convert
from fedsmoo.core.user_code import is_in_file
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.objects import PREFIX
from fedsmoo.runs.traffic import Travels, count_vectors


@dataclass(frozen=True)
class Method:
    """What a run says of its method: all options, the defaults of its class, and the vectors of a client and round."""

    options: Mapping[str, Any]
    defaults: Mapping[str, Any]
    vectors: Travels | None = None  # up, down, and single numbers; none: not known

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values for a file."""
        known = {} if self.vectors is None else {"vectors": list(self.vectors)}
        return as_json({"options": self.options, "defaults": self.defaults, **known})


def as_json(value: Any) -> Any:
    """Return a value as a JSON file gives it back."""
    return json.loads(json.dumps(value, default=str))


def is_users_code(algorithm: str) -> bool:
    """Return whether a method's code lies in a user's file: nothing is known of it before that is run."""
    return is_in_file(algorithm) and not algorithm.startswith(PREFIX)


def method_of_config(config: Config) -> Method:
    """Make the method that a config names, which imports the file of a user's own, and note what it says of itself.

    Raises:
        FedsmooError: if there is no such method, or it cannot be made.
    """
    algorithm = make_algorithm(config.algorithm, config.algorithm_options)
    defaults = make_algorithm(config.algorithm, {}).options()
    return Method(as_json(algorithm.options()), as_json(defaults), count_vectors(algorithm))


def own_method_of_config(config: Config) -> Method | None:
    """Return a user's own method as :func:`method_of_config` does; ``None`` for one of ours, or whose file is not here.

    For whoever is about to carry out the config: its file is imported.
    """
    if is_users_code(config.algorithm):
        with suppress(FedsmooError):
            return method_of_config(config)
    return None


def recorded_or_own_method(theirs: Config, known: Method | None, mine: Config) -> Method | None:
    """Return the method of the run in a folder where ``mine`` is to be carried out: as that run recorded it.

    Where it recorded none, it is made from the user's own code if both name the same; other code is never run.
    """
    return known or (own_method_of_config(theirs) if theirs.algorithm == mine.algorithm else None)


def method_facts(config: Config, algorithm: Algorithm) -> dict[str, Any]:
    """Return what a run records of its method when it begins; of an object of a program, only what travels."""
    if config.algorithm.startswith(PREFIX):
        return Method({}, {}, count_vectors(algorithm)).to_dict()
    return method_of_config(config).to_dict()


def recorded_method(facts: Mapping[str, Any]) -> Method | None:
    """Return the method from a run's records; ``None`` in records of older versions, or damaged ones."""
    found = facts.get("method")
    if not isinstance(found, dict):
        return None
    options, defaults, vectors = (found.get(n) for n in ("options", "defaults", "vectors"))
    if not isinstance(options, dict) or not isinstance(defaults, dict):
        return None
    return Method(options, defaults, checked_counts(vectors))


def checked_counts(vectors: Any) -> Travels | None:
    """Return recorded counts of vectors up, vectors down and single numbers; ``None`` if they cannot be right."""
    if not isinstance(vectors, list) or [type(v) for v in vectors] != [int] * 3:
        return None
    up, down, numbers = vectors
    return (up, down, numbers) if min(vectors) >= 0 and up + down > 0 else None


def vectors_that_travel(config: Config, method: Method | None) -> Travels | None:
    """Return the vectors up and down and the single numbers of a client and round; ``None`` where nobody noted them."""
    if config.algorithm.lower() in ALGORITHMS:
        return count_vectors(make_algorithm(config.algorithm, config.algorithm_options))
    return None if method is None else method.vectors


def resolved_options(config: Config, method: Method | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return all options of a config's method, and their defaults, without running code of a user's own.

    For that ``method`` says them. Without it, or where the file was not here, the options are those that were written.
    """
    if not is_in_file(config.algorithm):
        with suppress(FedsmooError):
            defaults = make_algorithm(config.algorithm, {}).options()
            with suppress(FedsmooError):
                return make_algorithm(config.algorithm, config.algorithm_options).options(), defaults
            return config.algorithm_options, defaults
    if method is None or not is_users_code(config.algorithm):
        return config.algorithm_options, {}
    written = {n: as_recorded(n, v, method.options.get(n)) for n, v in config.algorithm_options.items()}
    return {**method.options, **written}, method.defaults


def as_recorded(name: str, value: Any, known: Any) -> Any:
    """Return an option as its run recorded it, if it is the same number: files may say ``1`` or ``"1"`` of it."""
    value = as_json(value)
    with suppress(FedsmooError):
        if type(known) in (bool, int, float, str) and convert(name, value, type(known), False) == known:
            return known
    return value
