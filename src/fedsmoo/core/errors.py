"""Errors meant for people: one line that says what was wrong, where, and what to do."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import os
import reprlib
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self


class FedsmooError(Exception):
    """Bad input or a failed run, in words for the user; the command line prints it without a traceback."""


class UnknownSetting(FedsmooError):
    """A name that is no setting; ``name`` is what was written, ``owners`` who has options, and which."""

    name: object = ""
    owners: Mapping[str, Collection[str]] = {}


class FedsmooWarning(UserWarning):
    """Something that will work, but hardly as it was meant, in words for the user; one line on the command line."""


def first_line(error: BaseException) -> str:
    """Return what an error says in one line: its first line that is not empty, or its name.

    >>> first_line(ValueError("\\n too small\\nat line 3")), first_line(KeyError())
    ('too small', 'KeyError')
    """
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def unknown(kind: str, name: object, known: Iterable[str]) -> FedsmooError:
    """Return the error for a name nobody knows, with the nearest match.

    >>> str(unknown("algorithm", "fedsmo", ["fedavg", "fedsmoo"]))
    "unknown algorithm 'fedsmo': did you mean 'fedsmoo'? Known: fedavg, fedsmoo"
    >>> str(unknown("algorithm", "adam", ["fedavg", "fedsmoo"]))
    "unknown algorithm 'adam'; known: fedavg, fedsmoo"
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    meant = repr(next(n for n in names if n.lower() == near[0])) if near else ""
    if str(name).endswith(".py"):
        meant = f"what a file holds, '{name}:Name'"
    return FedsmooError(_unknown(kind, name, meant, f"known: {', '.join(names)}"))


def _unknown(kind: str, name: object, meant: str, known: str) -> str:
    """Say that nobody knows a name, what was meant if that can be guessed, and what is known."""
    if not meant:
        return f"unknown {kind} {name!r}; {known}"
    return f"unknown {kind} {name!r}: did you mean {meant}? {known.replace('known: ', 'Known: ', 1)}"


def unknown_setting(name: object, owners: Mapping[str, Collection[str]], settings: Iterable[str]) -> FedsmooError:
    """Return the error for a name that is no setting of a run, nor an option of its method, model, ...

    ``owners`` are these, with their options; where an option is as near as a setting, it is the one that was meant.

    >>> str(unknown_setting("nu", {"fedprox": ["mu", "lr_server"]}, ["lr", "u"]))
    "unknown setting 'nu': did you mean 'mu'? fedprox has lr_server, mu; or any setting of a run (fedsmoo run --help)"
    """
    word, names = str(name).lower(), [*(n for options in owners.values() for n in options), *settings]

    def alike(n: str) -> float:
        """Return which share of the longer name's letters the other has, too."""
        blocks = difflib.SequenceMatcher(None, word, n.lower()).get_matching_blocks()
        return sum(block.size for block in blocks) / max(len(word), len(n), 1)

    near = [n for n in names if difflib.SequenceMatcher(None, n.lower(), word).ratio() >= 0.5]
    meant = repr(max(near, key=alike)) if near else ""
    has = "".join(f"{owner} has {', '.join(sorted(options))}; " for owner, options in owners.items() if options)
    error = UnknownSetting(_unknown("setting", name, meant, f"{has}or any setting of a run (fedsmoo run --help)"))
    error.name, error.owners = name, owners
    return error


def as_typed(thing: Any) -> str:
    """Return a dataclass's object as one would type it: without what is at its default.

    >>> from fedsmoo import FedSMOO, Dirichlet
    >>> as_typed(FedSMOO(r=0.05)), as_typed(Dirichlet())
    ('FedSMOO(r=0.05)', 'Dirichlet()')
    """
    words = []
    for f in dataclasses.fields(thing):
        value = getattr(thing, f.name)
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if f.init and not (type(value) is type(default) and repr(value) == repr(default)):
            words.append(f"{f.name}={value!r}")
    return f"{type(thing).__name__}({', '.join(words)})"


@functools.lru_cache(maxsize=1024)
def argument_names(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """Return the names of a function's arguments, and whether it takes any others by name."""
    known = inspect.signature(function).parameters
    return tuple(known), any(p.kind is p.VAR_KEYWORD for p in known.values())


class PrintsAsTyped:
    """The base of dataclasses whose objects print as :func:`as_typed` writes them."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = as_typed  # type: ignore[method-assign]  # before dataclass puts one of its own there


class ChecksArguments(PrintsAsTyped):
    """The base of dataclasses that refuse an argument which they do not have, and name the nearest that they have."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        known, takes_any = argument_names(cls.__init__)
        for name in () if takes_any else named:
            if name not in known:
                raise unknown(f"option of {cls.__name__}", name, [n for n in known if n != "self"])
        return super().__new__(cls)


def as_path(value: Any, what: str) -> Path:
    """Return a path; what is none, or empty, which would be the folder that one happens to be in, is refused.

    >>> as_path(7, "out")
    Traceback (most recent call last):
    fedsmoo.core.errors.FedsmooError: out is 7, but must be a path, such as 'runs/a'
    """
    if not isinstance(value, str | os.PathLike) or not str(value).strip():
        raise FedsmooError(f"{what} is {brief(value)}, but must be a path, such as 'runs/a'")
    return Path(value)


def as_word(path: Path) -> str:
    """Return a path as a word of a command that an error puts into single quotes.

    >>> as_word(Path("runs/a")), as_word(Path("my runs/a"))
    ('runs/a', '"my runs/a"')
    """
    plain, quoted = str(path), shlex.quote(str(path))
    return quoted if quoted == plain or set(plain) & set("\"'$`\\!") else f'"{plain}"'


def brief(value: Any) -> str:
    """Return a value on one short line.

    >>> brief(list(range(100)))
    '[0, 1, 2, 3, 4, 5, ...]'
    """
    return " ".join(reprlib.repr(value).split())
