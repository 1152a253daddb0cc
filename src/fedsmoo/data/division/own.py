"""A user's own way to divide samples among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import call, user_object, with_options
from fedsmoo.data.check import check_indices
from fedsmoo.data.division.partition import Partition

ARGUMENTS = ("labels", "classes", "clients", "seed")
Rule = Callable[[np.ndarray, int, int, int], Any]


@dataclass(frozen=True)
class OwnPartition(Partition):
    """The partition in a user's file: a function ``(labels, classes, clients, seed)``, or a class with such a split.

    It returns the indices of each client's samples. The file is imported when it is needed: who only reads what a run
    was does not need it.
    """

    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec

    def to_rule(self) -> dict[str, Any]:
        return {"name": self.spec, **({"options": dict(self.options)} if self.options else {})}

    def rule(self) -> Rule:
        """Import the file and bind the options; refuse what cannot be called as a partition is."""
        what = f"partition {self.spec!r}"
        found = user_object(self.spec, "partition")
        refuse_changed_inputs(found, what)
        return with_options(found, what, ARGUMENTS, self.options, method="split")

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        return divide(self.rule(), f"partition {self.spec!r}", labels, classes, clients, seed)


def divide(rule: Rule, what: str, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
    """Return the clients' samples by a user's rule; refuse empty clients, indices outside the data, and other numbers.

    It is called twice, for a run that is resumed divides its samples again, and must find the same.
    """
    found = call(rule, what, labels.copy(), classes, clients, seed)
    if not isinstance(found, list | tuple | np.ndarray):
        raise FedsmooError(f"{what} returned a {type(found).__name__}, but must return a list of each client's samples")
    indices = check_indices(found, len(labels), what)
    if len(indices) != clients:
        raise FedsmooError(f"{what} returned {len(indices)} clients, but was asked for {clients}")
    again = check_indices(call(rule, what, labels.copy(), classes, clients, seed), len(labels), what)
    if len(again) != clients or any(not np.array_equal(a, b) for a, b in zip(indices, again, strict=True)):
        raise FedsmooError(
            f"{what} divided the same samples in two ways: it must depend on its arguments alone, so that a run can "
            "be resumed; draw from fedsmoo.stream(seed, 'partition')"
        )
    return indices


def refuse_changed_inputs(partition: Any, what: str = "partition") -> None:
    """Refuse a rule of the user's own that changes samples, as one made of ``Noise``: only its ``split`` is called."""
    if getattr(partition, "changes_inputs", False):
        raise FedsmooError(
            f"{what} changes what clients see of their samples, as only noise and rotation of ours do: change the "
            "samples in a data set of your own, with its clients in natural"
        )


def own_rule(partition: Any) -> Rule:
    """Return the rule of a function, or of an object with a ``split``, that a caller of ``simulate`` gives."""
    function = getattr(partition, "split", partition)
    return partial(divide, with_options(function, "partition", ARGUMENTS, {}), "partition")
