"""What can be said about data in any form: which columns are what, and how much of it is tested on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from fedsmoo.core.errors import FedsmooError, brief, unknown
from fedsmoo.data.targets import TARGETS


class ReaderOptions:
    """The base of what can be said to one reader: dataclasses of whole numbers from 1, and of what is true or false."""

    @classmethod
    def of(cls, given: Mapping[str, Any], what: str) -> Self:
        """Return checked options; refuse names that there are not, and values that cannot be."""
        kinds: dict[str, type] = {f.name: type(f.default) for f in fields(cls)}  # type: ignore[arg-type]  # of a subclass
        for name, value in given.items():
            if name not in kinds:
                raise unknown(f"option of {what}", name, kinds)
            is_kind = type(value) is kinds[name]
            if not is_kind or (kinds[name] is int and value < 1):
                must = "true or false" if kinds[name] is bool else "a whole number from 1"
                raise FedsmooError(f"{what}: {name} is {brief(value)}, but must be {must}")
        return cls(**given)


@dataclass(frozen=True)
class Options:
    """The columns of samples, labels and clients by name, and a few numbers; ``None``: by rule (see ``columns``).

    ``x`` and ``y`` may name several columns, as a tuple, a list or a text with commas.
    """

    x: tuple[Any, ...] | None = None
    y: tuple[Any, ...] | None = None
    client: Any = None
    test: float | None = None  # share of the samples, of each client where there are any, that is tested on
    target: str | None = None  # "classes", "numbers" or "labels", where the type of y does not say it
    pad: int = 0  # what sequences of tokens are made equally long with

    @classmethod
    def of(cls, given: Mapping[str, Any], what: str = "data") -> Options:
        """Return checked options; refuse names that there are not, and values that cannot be."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown(f"option of {what}", name, known)
        values = {n: v for n, v in given.items() if v is not None}
        for name in ("x", "y"):
            if name in values:
                values[name] = columns_in(values[name], name, what)
        if values.get("target", TARGETS[0]) not in TARGETS:
            raise unknown("target", str(values["target"]), TARGETS)
        share, pad = values.get("test"), values.get("pad", 0)
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1):
            raise FedsmooError(f"{what}: test is {brief(share)}, but must be a share between 0 and 1, such as 0.2")
        if isinstance(pad, bool) or not isinstance(pad, int) or pad < 0:
            raise FedsmooError(
                f"{what}: pad is {brief(pad)}, but must be the tokenizer's pad id, a whole number from 0"
            )
        return cls(**values)

    def given(self) -> dict[str, Any]:
        """Return those that somebody chose."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


def columns_in(value: Any, name: str, what: str) -> tuple[Any, ...]:
    """Return the names of columns in an option.

    >>> columns_in("age, height", "x", "data"), columns_in(["a b"], "x", "data"), columns_in(3, "x", "data")
    (('age', 'height'), ('a b',), (3,))
    """
    if isinstance(value, str):
        found: tuple[Any, ...] = tuple(part.strip() for part in value.split(","))
    else:
        found = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not found or any(not isinstance(n, str | int) or n == "" for n in found):
        raise FedsmooError(f"{what}: {name} is {brief(value)}, but must be the name of a column, or a list of names")
    if len(set(found)) < len(found):
        raise FedsmooError(f"{what}: {name} names a column twice, {brief(list(found))}")
    return found
