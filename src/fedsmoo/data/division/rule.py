"""What every partition is: a rule that turns labels into one list of indices per client."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from fedsmoo.core.errors import FedsmooError, PrintsAsTyped
from fedsmoo.core.hyper.options import refuse_ignored_values
from fedsmoo.data.dataset import Dataset


@dataclass(frozen=True)
class Partition(PrintsAsTyped, ABC):
    """A rule that gives every client its samples."""

    label: ClassVar[str] = ""
    # Whether its options are settings of a run by themselves (u, c, replacement, refill). Those of all other rules are
    # the number in its name and ``partition_options``.
    in_settings: ClassVar[bool] = False
    changes_inputs: ClassVar[bool] = False  # whether clients see their samples changed: see ``with_inputs``

    def __post_init__(self) -> None:
        refuse_ignored_values(type(self))
        for f in fields(self):
            value, what = getattr(self, f.name), f"partition {self.label}: {f.name} is"
            if f.name in ("replacement", "refill", "balance") and not isinstance(value, bool | np.bool_):
                raise FedsmooError(f"{what} {value!r}, but must be True or False")  # the word "false" would be true
            if f.metadata.get("positive"):
                real = is_number(value) and math.isfinite(value)
                if isinstance(f.default, float) and not (real and value > 0):
                    raise FedsmooError(f"{what} {value!r}, but must be a number above 0, such as {f.default}")
                if isinstance(f.default, int) and not (real and value == int(value) and value >= 1):
                    raise FedsmooError(f"{what} {value!r}, but must be a whole number of at least 1")

    @property
    def name(self) -> str:
        """The short name, as ``parse`` reads it: with the number that is the first option, as in ``classwise-0.5``."""
        first = next(iter(fields(self)), None)
        if first is None or not first.metadata.get("positive"):
            return self.label
        return f"{self.label}-{number_as_text(getattr(self, first.name))}"

    @property
    def count(self) -> int | None:
        """How many clients there are, where the rule itself says it."""
        return None

    def to_rule(self) -> dict[str, Any]:
        """Return the partition as plain values, for files."""
        return {"name": self.label, **asdict(self)}

    def to_settings(self) -> dict[str, Any]:
        """Return the partition as settings of a run."""
        rule = self.to_rule()
        if self.in_settings:
            return {"partition": rule.pop("name"), **rule}
        said = fields(self)[0].name
        plain = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        rest = {n: v for n, v in rule.items() if n not in ("name", said) and v != plain.get(n)}
        return {"partition": self.name, "partition_options": rest}

    @abstractmethod
    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        """Return sorted int64 indices into ``labels`` for each of the clients."""

    def with_inputs(self, data: Dataset, indices: Sequence[np.ndarray], seed: int) -> Dataset:
        """Return the data as the clients see it, who hold these samples; the test part stays as it is."""
        return data


def positive_option(default: float, help: str) -> Any:
    """Declare an option of a partition: a number above 0, and a whole one if its default is."""
    return field(default=default, metadata={"help": help, "positive": True})


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def number_as_text(number: float) -> str:
    """Return a number as a partition's name says it: short, and exact.

    >>> number_as_text(0.5), number_as_text(1.0), number_as_text(0.123456789)
    ('0.5', '1', '0.123456789')
    """
    if isinstance(number, Integral):
        return str(number)
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))
