"""What a method says of itself: its vectors and hyper-parameters, checked as they are written, with their lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsmoo.core.algorithm import Algorithm, refuse_wrong_options
from fedsmoo.core.blame import Place, declared_at, in_brief, path_in_package, place_of, stack_of
from fedsmoo.core.contract.watch import Note
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.hyper.options import ignored_values
from fedsmoo.core.vectors import Vectors

PLACES = ("down", "server", "own", "local", "up")
REQUESTS = ("loss",)
NAMES = (*PLACES, "scalars", "rows", "stays", "masks", "sizes")
MAPPINGS = {"masks": 'names to parameters, such as {"head": "fc.*"}', "sizes": 'names to numbers, such as {"s": 8}'}


def inner_methods(algorithm: Algorithm) -> list[Algorithm]:
    """Return the methods inside a wrapper."""
    return [v for v in algorithm.options().values() if isinstance(v, Algorithm)]


def users_class(algorithm: Algorithm) -> type:
    """Return the first class of a method, or of one inside it, that is not ours."""
    classes = [c for c in type(algorithm).__mro__ if issubclass(c, Algorithm)]
    mine = next((c for c in classes if not c.__module__.startswith("fedsmoo.")), None)
    if mine is not None:
        return mine
    return next((users_class(m) for m in inner_methods(algorithm)), classes[0])


def definition(algorithm: Algorithm, name: str) -> Place | str:
    """Return where a user's function of a method is written, or else the user's class."""
    for cls in type(algorithm).__mro__:
        found = vars(cls).get(name)
        code = getattr(getattr(found, "fget", found), "__code__", None)
        if code is not None and path_in_package(code.co_filename) is None:
            return Place(code.co_filename, code.co_firstlineno, name)
        if code is not None:
            break
    for method in inner_methods(algorithm):
        place = definition(method, name)
        if isinstance(place, Place) and place.function == name:
            return place
    return declared_at(users_class(algorithm))


def declarations(algorithm: Algorithm) -> list[Note]:
    """Return what is wrong with the names of vectors, and with the hyper-parameters."""
    cls = users_class(algorithm)
    found = [Note(declared_at(owner, name), text) for owner, name, text in ignored_values(type(algorithm))]
    try:
        if not found:
            refuse_wrong_options(algorithm)
    except FedsmooError as e:
        found.append(Note(declared_at(cls), str(e)))
    names: dict[str, tuple[str, ...]] = {}
    for place in NAMES:
        try:
            value = getattr(algorithm, place)
            found += [Note(declared_at(cls, place), text) for text in wrong_lengths(value) if place == "sizes"]
        except Exception as e:  # a property of the user's own
            found.append(Note(place_of(stack_of(e)) or definition(algorithm, place), in_brief(e)))
            continue
        found += [Note(declared_at(cls, place), text) for text in wrong_names(place, value)]
        names[place] = tuple(value) if isinstance(value, tuple | Mapping) else ()
    found += [Note(declared_at(cls, place), text) for place, text in wrong_requests(algorithm)]
    if len(names) == len(NAMES) and not found:
        found += [Note(declared_at(cls, place), text) for place, text in clashes(names)]
    return found


def wrong_requests(algorithm: Algorithm) -> list[tuple[str, str]]:
    """Return what is wrong with what a method asks for besides vectors, with the place to mend."""
    asks, features = algorithm.asks, algorithm.features
    out = [] if isinstance(features, bool) else [("features", f"features is {features!r}, but must be True or False")]
    if not isinstance(asks, tuple) or not set(asks) <= set(REQUESTS):
        out.append(("asks", f"asks is {asks!r}, but must be a tuple of these names: {', '.join(REQUESTS)}"))
    return out


def wrong_names(place: str, value: Any) -> list[str]:
    """Return what is wrong with one tuple of names."""
    if place in MAPPINGS:
        if not isinstance(value, Mapping):
            return [f"{place} is {value!r}, but must map {MAPPINGS[place]}"]
        value = tuple(value)
    if not isinstance(value, tuple) or not all(isinstance(n, str) for n in value):
        return [f'{place} is {value!r}, but must be a tuple of names, such as ("w",)']
    texts = [f"{place}: {n!r} cannot name a vector" for n in value if not n.isidentifier() or n.startswith("_")]
    texts += [f"{place}: {n!r} is a name that Vectors needs itself" for n in value if hasattr(Vectors, n)]
    return texts + [f"{place} names {n!r} twice" for n in sorted({n for n in value if value.count(n) > 1})]


def wrong_lengths(sizes: Any) -> list[str]:
    """Return what is wrong with how many numbers vectors of another size than the model's have."""
    if not isinstance(sizes, Mapping):
        return []  # said of its names
    wrong = {n: v for n, v in sizes.items() if not isinstance(v, int) or isinstance(v, bool) or v < 1}
    return [
        f"sizes: {n!r} has {v!r} numbers, but must have a whole number of them, 1 or more" for n, v in wrong.items()
    ]


def clashes(names: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return which names contradict each other, with the place to mend."""
    down, server, own, local, up, scalars, rows, stays, masks, sizes = (set(names[p]) for p in NAMES)
    out = [] if "w" in down else [("down", "down must hold the model, 'w'")]
    every = down | server | own | local | up
    twice, both = down & server, own & local
    out += [("server", f"server names {n!r}, which is on the server already: it is in down") for n in sorted(twice)]
    out += [("local", f"{n!r} is own and local: it either stays between rounds or does not") for n in sorted(both)]
    out += [("scalars", "the model, 'w', cannot be a single number")] if "w" in scalars else []
    out += [("scalars", f"scalars names {n!r}, which no other declaration does") for n in sorted(scalars - every)]
    out += [("sizes", "the model, 'w', has the size that it has")] if "w" in sizes else []
    out += [("sizes", f"sizes names {n!r}, which no other declaration does") for n in sorted(sizes - every)]
    out += [("sizes", f"sizes names {n!r}, which scalars says is one number") for n in sorted(sizes & scalars)]
    out += [("rows", f"rows names {n!r}, which is not in up") for n in sorted(rows - up)]
    out += [("stays", f"stays names {n!r}, which is not in masks") for n in sorted(stays - masks)]
    taken = masks & (down | server)
    return out + [("masks", f"masks names {n!r}, which is a vector already") for n in sorted(taken)]
