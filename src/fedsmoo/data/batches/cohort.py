"""Which clients take part in a round: a function of the seed, the round, and the numbers of clients and of a cohort."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, brief, unknown
from fedsmoo.core.random.streams import stream
from fedsmoo.core.user_code import call, is_in_file, user_object, with_options

# (seed, round counted from 0, clients in all, clients in a cohort) -> the clients of the round
Sampling = Callable[[int, int, int, int], Sequence[int]]
ARGUMENTS = ("seed", "round", "clients", "cohort")


def uniform(seed: int, round: int, clients: int, cohort: int) -> list[int]:
    """exactly n of the m clients, uniformly without replacement"""
    return sorted(stream(seed, "cohort", round).choice(clients, cohort, replace=False, shuffle=False).tolist())


def bernoulli(seed: int, round: int, clients: int, cohort: int) -> list[int]:
    """each client with probability n/m, as in the authors' released code; a round may have no client"""
    return np.flatnonzero(stream(seed, "cohort", round).random(clients) < cohort / clients).tolist()


SAMPLINGS: dict[str, Sampling] = {"uniform": uniform, "bernoulli": bernoulli}


def make_sampling(spec: str, options: Mapping[str, Any] | None = None) -> Sampling:
    """Return the way of drawing cohorts with a name of ours, or the one in a user's file, with its options.

    Raises ``FedsmooError`` for a name that nobody has, and for options where there are none.
    """
    if is_in_file(spec):
        return own_sampling(user_object(spec, "sampling"), f"sampling {spec!r}", options or {})
    if spec not in SAMPLINGS:
        raise unknown("sampling", spec, SAMPLINGS)
    if options:
        raise FedsmooError(f"sampling {spec!r} has no options: leave out {', '.join(options)}")
    return SAMPLINGS[spec]


def own_sampling(function: Any, what: str = "sampling", options: Mapping[str, Any] | None = None) -> Sampling:
    """Return a user's way of drawing cohorts, whose cohorts are checked every time."""
    return partial(_checked, with_options(function, what, ARGUMENTS, options or {}), what)


def _checked(function: Sampling, what: str, seed: int, round: int, clients: int, cohort: int) -> list[int]:
    """Draw twice, for a run that is resumed draws its cohorts again; refuse what are not distinct clients."""
    first, second = (_ids(call(function, what, seed, round, clients, cohort), what) for _ in range(2))
    if first != second:
        raise FedsmooError(
            f"{what} drew {brief(first)} and then {brief(second)} for round {round}: it must depend on its arguments "
            f"alone, so that a run can be resumed; draw from fedsmoo.stream(seed, 'cohort', round)"
        )
    if first and not (first[0] >= 0 and first[-1] < clients):
        raise FedsmooError(f"{what} drew {brief(first)} for round {round}, but clients are 0 to {clients - 1}")
    if len(set(first)) < len(first):
        raise FedsmooError(f"{what} drew {brief(first)} for round {round}, where a client is there twice")
    return first


def _ids(found: Any, what: str) -> list[int]:
    """Return drawn clients as sorted whole numbers; refuse anything else."""
    try:
        array = np.asarray(found.cpu() if isinstance(found, Tensor) else list(found))
    except (TypeError, ValueError):
        array = np.array(None)
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise FedsmooError(f"{what} returned {brief(found)}, but must return a list of clients, such as [0, 3, 4]")
    return sorted(array.tolist()) if array.size else []


def cohort(seed: int, number: int, clients: int, size: int, sampling: str | Sampling = "uniform") -> list[int]:
    """Return the clients of round ``number``, in increasing order; refuse a size that is not from 1 to ``clients``.

    >>> cohort(seed=0, number=0, clients=4, size=4)
    [0, 1, 2, 3]
    """
    if not 1 <= size <= clients:
        raise FedsmooError(f"a cohort of {size} out of {clients} clients: choose a cohort from 1 to {clients}")
    draw = make_sampling(sampling) if isinstance(sampling, str) else sampling
    return list(draw(seed, number, clients, size))
