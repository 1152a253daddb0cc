"""What callbacks changed on the way: the local learning rate, and numbers of the method, from the next round on.

Changes are part of a run's history: the record of a round says what was changed after it. So a run that is resumed goes
on with them, and its identity is not that of the run without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from fedsmoo.core import Algorithm, FedsmooError, Schedule
from fedsmoo.core.errors import unknown
from fedsmoo.core.hyper.options import kinds, read_hyper_parameter
from fedsmoo.core.server import ServerSettings, lr_of
from fedsmoo.runs.settings.fields import checked_setting
from fedsmoo.runs.settings.training import Training

if TYPE_CHECKING:
    from fedsmoo.runs.record import Record

Change = tuple[int, Mapping[str, Any]]  # how many rounds were done before, and the new values by name


def changes_in(history: Sequence[Record]) -> list[Change]:
    """Return what was changed in a history, in order."""
    return [(record.round, record.changes) for record in history if record.changes]


def changes_in_words(changes: Sequence[Any]) -> str:
    """Return what was changed, and when, for a person.

    >>> changes_in_words([[3, {"lr": 0.01}], [5, {"r": 0.2}]])
    'lr=0.01 after round 3, r=0.2 after round 5'
    """
    return ", ".join(f"{name}={value} after round {done}" for done, new in changes for name, value in new.items())


def in_force(changes: Sequence[Change], number: int) -> dict[str, tuple[int, Any]]:
    """Return what changes hold in a round, counted from 0: since how many rounds were done, and the value, by name."""
    return {name: (done, value) for done, new in changes if done <= number for name, value in new.items()}


def lr_at(settings: ServerSettings, changes: Sequence[Change], number: int) -> float:
    """Return the local learning rate of a round, counted from 0: one that was set decays from there on."""
    done, lr = in_force(changes, number).get("lr", (0, None))
    return lr_of(settings, number) if lr is None else lr * settings.lr_decay ** (number - done)


def method_at(method: Algorithm, changes: Sequence[Change], number: int) -> Algorithm:
    """Return the method in a round, counted from 0: schedules are numbers, and what was changed is in force."""
    now = {name: value for name, (_, value) in in_force(changes, number).items() if name != "lr"} if changes else {}
    return with_numbers(method, now).at(number)


def with_numbers(method: Algorithm, values: Mapping[str, Any]) -> Algorithm:
    """Return a method, inside what is put around it, with other hyper-parameters."""
    if not values:
        return method
    if isinstance(inner := getattr(method, "inner", None), Algorithm):
        changed: dict[str, Any] = {"inner": with_numbers(inner, values)}
        return dataclasses.replace(method, **changed)
    known = kinds(type(method))
    for name in values:
        if name not in known:
            raise unknown(f"number of {method.label} that was changed", name, known)
    return dataclasses.replace(method, **{n: read_hyper_parameter(n, v, *known[n]) for n, v in values.items()})


def checked_change(method: Algorithm, name: str, value: Any) -> Any:
    """Return a new value as a record holds it: a number, or a schedule as text; refuse what cannot be changed so."""
    if name == "lr":
        return checked_setting(Training, name, value)
    while isinstance(inner := getattr(method, "inner", None), Algorithm):
        method = inner
    numbers = changeable(method)
    if name not in numbers:
        raise unknown(f"number of a run with {method.label} that a callback may change", name, ["lr", *numbers])
    if not isinstance(value, Schedule | Real) or isinstance(value, bool):
        raise FedsmooError(f"{name} is {value!r}, but must be a number or a Schedule")
    with_numbers(method, {name: value})  # which checks type and range
    return str(value) if isinstance(value, Schedule) else numbers[name](value)


def changeable(method: Algorithm) -> dict[str, type]:
    """Return the hyper-parameters of a method that may be other numbers in other rounds, and their types."""
    counted = {f.name for f in dataclasses.fields(method) if f.metadata.get("counts")}
    known = kinds(type(method))
    return {name: kind for name, (kind, _) in known.items() if kind in (int, float) and name not in counted}
