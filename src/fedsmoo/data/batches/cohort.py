"""Which clients take part in a round: a function of the seed, the round, and the numbers of clients and of a cohort."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, brief, unknown
from fedsmoo.core.random.streams import stream
from fedsmoo.core.user_code import call, is_in_file, refuse_options, user_object, with_options
from fedsmoo.data.batches.rules import Ask, PowerOfChoice, RoundRobin, Weighted

# (seed, round counted from 0, clients in all, clients in a cohort) -> the clients of the round
Sampling = Callable[[int, int, int, int], Sequence[int]]
ARGUMENTS = ("seed", "round", "clients", "cohort")


def uniform(seed: int, round: int, clients: int, cohort: int) -> list[int]:
    """exactly n of the m clients, uniformly without replacement"""
    return sorted(stream(seed, "cohort", round).choice(clients, cohort, replace=False, shuffle=False).tolist())


def bernoulli(seed: int, round: int, clients: int, cohort: int) -> list[int]:
    """each client with probability n/m, as in the authors' released code; a round may have no client"""
    return np.flatnonzero(stream(seed, "cohort", round).random(clients) < cohort / clients).tolist()


SAMPLINGS: dict[str, Any] = {
    "uniform": uniform,
    "bernoulli": bernoulli,
    "weighted": Weighted,
    "round_robin": RoundRobin,
    "power_of_choice": PowerOfChoice,
}


@dataclass(frozen=True)
class RuleSampling:
    """A cohort rule, whose cohorts are checked: an object with ``draw(rng, number, m, n, ask)``."""

    rule: Any
    what: str
    began: Any = field(init=False, repr=False, compare=False)  # a copy of the rule before it drew anything

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", copy_or(self.rule, self.rule))

    def __call__(self, seed: int, round: int, clients: int, cohort: int, ask: Ask | None = None) -> list[int]:
        if ask is None and not getattr(self.rule, "alone", False):
            raise FedsmooError(f"{self.what} needs to know clients' samples or losses, which are not known here")
        found, again = (
            _ids(call(rule.draw, self.what, stream(seed, "cohort", round), round, clients, cohort, ask), self.what)
            for rule in (self.rule, copy_or(self.began, self.rule))
        )
        if found != again:
            raise FedsmooError(
                f"{self.what} drew {brief(found)} for round {round}, but as at the beginning {brief(again)}: "
                "let it keep nothing and draw from the generator it is given alone, so that a run can be resumed"
            )
        if ask is not None and ask.asked and not getattr(self.rule, "asks", False):
            raise FedsmooError(
                f"{self.what} asks clients for their losses: say asks = True in its class, so that no cohort is drawn "
                "before the model is there at which they are asked"
            )
        return refuse_no_cohort(found, self.what, round, clients)


def copy_or(rule: Any, otherwise: Any) -> Any:
    """Return a deep copy of a rule, or ``otherwise`` where it cannot be copied, as with an open file in it."""
    try:
        return copy.deepcopy(rule)
    except Exception:  # the user's own code
        return otherwise


def asks_for_losses(sampling: Any) -> bool:
    """Return whether a way of drawing cohorts asks clients for their losses."""
    return isinstance(sampling, RuleSampling) and bool(getattr(sampling.rule, "asks", False))


def is_fixed(sampling: Any) -> bool:
    """Return whether a way of drawing cohorts draws equally many clients in every round."""
    return sampling is uniform or (isinstance(sampling, RuleSampling) and bool(getattr(sampling.rule, "fixed", False)))


def has_rule(thing: Any) -> bool:
    """Return whether something is a cohort rule, or a class of them."""
    return callable(getattr(thing, "draw", None))


def make_sampling(spec: str, options: Mapping[str, Any] | None = None) -> Sampling:
    """Return the way of drawing cohorts with a name of ours, or the one in a user's file, with its options.

    Raises ``FedsmooError`` for a name that nobody has, and for options where there are none.
    """
    if is_in_file(spec):
        return own_sampling(user_object(spec, "sampling"), f"sampling {spec!r}", options or {})
    if spec not in SAMPLINGS:
        raise unknown("sampling", spec, SAMPLINGS)
    if has_rule(SAMPLINGS[spec]):
        return own_sampling(SAMPLINGS[spec], f"sampling {spec!r}", options or {})
    if options:
        raise FedsmooError(f"sampling {spec!r} has no options: leave out {', '.join(options)}")
    return SAMPLINGS[spec]


def own_sampling(function: Any, what: str = "sampling", options: Mapping[str, Any] | None = None) -> Sampling:
    """Return a user's way of drawing cohorts, whose cohorts are checked every time."""
    if has_rule(function):
        refuse_options(function, what, (), options or {})
        return RuleSampling(call(function, what, **(options or {})) if isinstance(function, type) else function, what)
    return partial(_checked, with_options(function, what, ARGUMENTS, options or {}), what)


def _checked(function: Sampling, what: str, seed: int, round: int, clients: int, cohort: int) -> list[int]:
    """Draw twice, for a run that is resumed draws its cohorts again; refuse what are not distinct clients."""
    first, second = (_ids(call(function, what, seed, round, clients, cohort), what) for _ in range(2))
    if first != second:
        raise FedsmooError(
            f"{what} drew {brief(first)} and then {brief(second)} for round {round}: it must depend on its arguments "
            f"alone, so that a run can be resumed; draw from fedsmoo.stream(seed, 'cohort', round)"
        )
    return refuse_no_cohort(first, what, round, clients)


def refuse_no_cohort(found: list[int], what: str, round: int, clients: int) -> list[int]:
    """Return sorted numbers of clients; refuse those that are no clients, or the same one twice."""
    if found and not (found[0] >= 0 and found[-1] < clients):
        raise FedsmooError(f"{what} drew {brief(found)} for round {round}, but clients are 0 to {clients - 1}")
    if len(set(found)) < len(found):
        raise FedsmooError(f"{what} drew {brief(found)} for round {round}, where a client is there twice")
    return found


def _ids(found: Any, what: str) -> list[int]:
    """Return drawn clients as sorted whole numbers; refuse anything else."""
    try:
        array = np.asarray(found.cpu() if isinstance(found, Tensor) else list(found))
    except (TypeError, ValueError):
        array = np.array(None)
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise FedsmooError(f"{what} returned {brief(found)}, but must return a list of clients, such as [0, 3, 4]")
    return sorted(array.tolist()) if array.size else []


def cohort(
    seed: int, number: int, clients: int, size: int, sampling: str | Sampling = "uniform", ask: Ask | None = None
) -> list[int]:
    """Return the clients of round ``number``, in increasing order; refuse a size that is not from 1 to ``clients``.

    ``ask`` is what a cohort rule may know of clients.

    >>> cohort(seed=0, number=0, clients=4, size=4)
    [0, 1, 2, 3]
    """
    if not 1 <= size <= clients:
        raise FedsmooError(f"a cohort of {size} out of {clients} clients: choose a cohort from 1 to {clients}")
    draw = make_sampling(sampling) if isinstance(sampling, str) else sampling
    if isinstance(draw, RuleSampling):
        return draw(seed, number, clients, size, ask)
    return list(draw(seed, number, clients, size))
