"""Which column of a table is what: by the names that somebody gives, or by those that are usual."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsmoo.core.errors import FedsmooError, FedsmooWarning, unknown
from fedsmoo.data.forms.options import Options

TARGETS = ("label", "labels", "y", "target", "targets")
SAMPLES = ("x", "image", "img", "pixel_values", "input_values", "inputs", "features", "data")
TOKENS = ("input_ids", "attention_mask", "token_type_ids")  # the inputs of a language model, in the usual order
CLIENTS = ("client", "client_id")

# What a column may hold: one number, a class with a name, an array or list, an image, text, or something else.
NUMBER, CLASS, ARRAY, IMAGE, TEXT, OTHER = "number", "class", "array", "image", "text", "other"
Kinds = Mapping[Any, str]


@dataclass(frozen=True)
class Chosen:
    """The columns of the samples, of the labels, and of who holds a sample."""

    x: tuple[Any, ...]
    y: tuple[Any, ...]
    client: Any = None
    features: bool = False  # x are columns of one number each, the features of a sample

    @property
    def named(self) -> tuple[Any, ...] | None:
        """The columns of samples where their order counts: features, and several inputs."""
        return self.x if self.features or len(self.x) > 1 else None

    @property
    def inputs(self) -> tuple[Any, ...] | None:
        """The names of several inputs of a model; ``None``: it has one."""
        return None if self.features else self.named


def choose(kinds: Kinds, options: Options, what: str, remedy: Callable[[Any], str]) -> Chosen:
    """Return which columns are what; refuse where that is not clear.

    ``remedy`` says what to do about a column of text, by its name, for this form of data.
    """
    known = [str(n) for n in kinds]
    for name in (*(options.x or ()), *(options.y or ()), *(() if options.client is None else (options.client,))):
        if name not in kinds:
            raise unknown(f"column of {what}", name, known)
    y = options.y or next(((n,) for n in TARGETS if n in kinds), None)
    if y is None:
        raise FedsmooError(f"{what}: which column is to be learnt? Say it as y='NAME': there are {', '.join(known)}")
    client = options.client if options.client is not None else next((n for n in CLIENTS if n in kinds), None)
    client = None if client in y else client
    x = options.x or by_rule(kinds, {*y, client}, what)
    both = [str(n) for n in x if n in y or n == client]
    if both:
        raise FedsmooError(f"{what}: column {both[0]!r} is both in x and what is learnt or who holds it: choose one")
    for name in x:
        if kinds[name] in (TEXT, OTHER):
            holds = "text" if kinds[name] == TEXT else "neither numbers nor images"
            others = "" if options.x else "; or name the columns to learn from, x=[...]"
            raise FedsmooError(f"{what}: column {str(name)!r} holds {holds}: {remedy(name)}{others}")
    numbers = [kinds[n] in (NUMBER, CLASS) for n in x]
    if any(numbers) and not all(numbers):
        raise FedsmooError(f"{what}: x mixes columns of one number with columns of arrays or images: {', '.join(x)}")
    return Chosen(x, y, client, all(numbers))


def by_rule(kinds: Kinds, taken: set[Any], what: str) -> tuple[Any, ...]:
    """Return the columns of samples where nobody names them: tokens, a usual name, or all that are left."""
    if TOKENS[0] in kinds:
        return tuple(n for n in TOKENS if n in kinds)
    usual = next((n for n in SAMPLES if n in kinds and n not in taken), None)
    left = [n for n in kinds if n not in taken]
    if usual is not None:
        beside = [repr(n) for n in left if n != usual and {kinds[n], kinds[usual]} <= {NUMBER, CLASS}]
        if beside:  # a feature among others, by its looks
            say = f"{what}: samples are the column {usual!r} alone, without {', '.join(beside)}"
            warnings.warn(f"{say}: name all columns to learn from, x=[...]", FedsmooWarning, stacklevel=2)
        return (usual,)
    if len(left) == 1 or (left and all(kinds[n] not in (ARRAY, IMAGE) for n in left)):
        return tuple(left)
    if not left:
        raise FedsmooError(f"{what}: no column is left to learn from")
    raise FedsmooError(f"{what}: which column holds the samples? Say it as x='NAME': {', '.join(map(str, left))}")
