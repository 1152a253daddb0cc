"""Checks that every method passes, and that a method of your own can be held to.

from fedsmoo.testing import check_algorithm

def test_my_method():
    check_algorithm(MyMethod(rho=0.1))
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import torch

from fedsmoo.core import Algorithm, Vectors
from fedsmoo.core.blame import in_brief
from fedsmoo.core.contract import findings, inputs
from fedsmoo.core.contract.dependence import a_client, changed, steps_of, unused
from fedsmoo.core.contract.form import CLIENTS, SCALE, Scale
from fedsmoo.core.contract.inputs import EVERYBODY


def check_algorithm(algorithm: Algorithm, compiled: bool = True, classes: int = 3, features: int = 4) -> list[str]:
    """Check a method; raise an ``AssertionError`` with a line for each thing that is wrong, all at once.

    The first of them, ``fedsmoo.core.contract.findings``, is what every run of a method of your own begins with.

    Args:
        algorithm: a method with its hyper-parameters.
        compiled: also trace a whole local step, which takes a second.
        classes: outputs of the model that it is checked on; a method with a number for each class fits one only.
        features: numbers that the last layer of that model reads.

    Returns:
        What could be better and is not wrong, a line each.
    """
    token = SCALE.set(Scale(classes=classes, features=features))
    try:
        return checked(algorithm, compiled)
    finally:
        SCALE.reset(token)


def checked(algorithm: Algorithm, compiled: bool) -> list[str]:
    """Do what :func:`check_algorithm` does, on a model of the scale in force."""
    wrong, notes = undescribed(algorithm)
    wrong = wrong or findings(algorithm, SCALE.get())
    if wrong and getattr(algorithm, "sizes", None):  # a class that is no method has none
        classes, features = SCALE.get().classes, SCALE.get().features
        text = f"sizes were checked on {classes} classes and {features} features; others: check_algorithm(method, "
        wrong.append(f"{algorithm.label}: its {text}classes=..., features=...)")
    if not wrong:
        unread, kept = unused(algorithm)
        wrong, notes = [*unread, *unlike_numbers(algorithm)], notes + kept
        wrong += untraceable(algorithm) if compiled else []
    if wrong:
        raise AssertionError("\n".join(wrong))
    return notes


def undescribed(algorithm: Algorithm) -> tuple[list[str], list[str]]:
    """Find what is undocumented: help beside every field, a box in the docstring, the paper in the module's.

    The latter are notes for a user's method, which may be in no paper yet; what comes with the package has them all.
    """
    cls, label = type(algorithm), type(algorithm).__name__
    if not getattr(getattr(cls, "__dataclass_params__", None), "frozen", False):
        return [f"{label} is not a frozen dataclass: write @dataclass(frozen=True) above it"], []
    named = [f.name for f in dataclasses.fields(cls) if not f.metadata.get("help")]
    notes = [f"{label}.{n} has no help: write option(default, 'its meaning')" for n in named]
    text = "" if cls.__doc__ is None or cls.__doc__.startswith(f"{label}(") else inspect.cleandoc(cls.__doc__)
    if not text.partition("\n")[0].endswith((".", ":")):
        notes.append(f"{label}: the docstring does not open with a sentence")
    if not any(re.match(r"(client|server)\s", line) for line in text.splitlines()):
        notes.append(f"{label}: the docstring has no box (lines that start with 'client' or 'server')")
    paper = (inspect.getmodule(cls).__doc__ if inspect.getmodule(cls) else "") or ""
    if not cls.__module__.startswith("fedsmoo."):
        return [], notes
    if not re.search(r"\b(19|20)\d\d\b", paper):
        notes.append(f"{label}: the module's docstring does not name the paper and its year")
    return notes, []


def unlike_numbers(algorithm: Algorithm) -> list[str]:
    """Check that with hyper-parameters as ``[C, 1]`` tensors, of several runs in a batch, each row is its own run."""
    each = [scaled(algorithm, by) for by in (1.0, 0.9, 0.8)]
    me = inputs.random_vectors(algorithm, (*algorithm.own, *algorithm.local), 4, CLIENTS)
    down = inputs.random_vectors(algorithm, algorithm.down, 1).replace(**inputs.make_masks(algorithm))
    text = f"{algorithm.label}: with hyper-parameters of shape [C, 1], as when several runs share a batch,"
    try:
        together = a_client(stacked(each), down, me, steps_of(algorithm, EVERYBODY))
    except (RuntimeError, TypeError, ValueError) as e:
        return [f"{text} it fails: {in_brief(e)}"]
    for c, one in enumerate(each):
        alone = a_client(one, down, me.map(itemgetter(c)), steps_of(algorithm, c))
        if found := unlike(together, alone, c):
            return [f"{text} run {c} differs: {found}"]
    return []


def untraceable(algorithm: Algorithm) -> list[str]:
    """Check that a client's round, of one step, is one graph under ``torch.compile``, with the same numbers."""
    me = inputs.random_vectors(algorithm, (*algorithm.own, *algorithm.local), 4, CLIENTS)
    down = inputs.random_vectors(algorithm, algorithm.down, 1).replace(**inputs.make_masks(algorithm))
    steps = steps_of(algorithm, EVERYBODY)[:1]  # each is traced anew, and takes as long

    def a_round(down: Vectors, me: Vectors) -> tuple[Vectors, Vectors]:
        return a_client(algorithm, down, me, steps)

    torch.compiler.reset()
    try:
        traced = torch.compile(a_round, fullgraph=True, backend="eager")(down, me)
    except Exception as e:
        return [f"{algorithm.label} does not trace into one graph: {in_brief(e)}"]
    finally:
        torch.compiler.reset()
    found = unlike(traced, a_round(down, me))
    return [f"{algorithm.label}: compiled and plain rounds differ: {found}"] if found else []


def unlike(got: Iterable[Vectors], expected: Iterable[Vectors], row: int | None = None) -> str:
    """Say which vector is not as expected, and by how much; empty if all are."""
    for a, b in zip(got, expected, strict=True):
        for name, e in b.items():
            g = getattr(a, name) if row is None else getattr(a, name)[row]
            if g.shape != e.shape:
                return f"{name} has shape {tuple(g.shape)}, not {tuple(e.shape)}"
            gap = float((g - e).masked_fill(g.isnan() & e.isnan(), 0).abs().max())  # roots of numbers drawn at random
            if not gap <= SCALE.get().tolerance * (1 + float(e.nan_to_num().abs().max())):
                return f"{name} is off by {gap:.1e}"
    return ""


def scaled(algorithm: Algorithm, by: float) -> Algorithm:
    return changed(algorithm, lambda v: v * by)


def stacked(each: list[Any]) -> Any:
    """Return one method whose numbers are those of several, ``[C, 1]``."""
    options = {}
    for name, value in each[0].options().items():
        values = [getattr(one, name) for one in each]
        if isinstance(value, Algorithm):
            options[name] = stacked(values)
        elif isinstance(value, float):
            options[name] = torch.tensor(values, dtype=torch.float64)[:, None]
    return dataclasses.replace(each[0], **options)
