"""The command behind a result, as it was typed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_typed: list[list[str]] = []  # the words of the command lines that are being carried out, the innermost last


@contextmanager
def typed(words: Sequence[str]) -> Iterator[None]:
    """Remember the words behind ``fedsmoo`` while they are carried out."""
    _typed.append(list(words))
    try:
        yield
    finally:
        _typed.pop()


def command() -> str:
    """Return the command line as it was typed; of a run that Python code starts, the program that does so.

    >>> with typed(["run", "my config.toml", "--seed", "1"]):
    ...     command()
    "fedsmoo run 'my config.toml' --seed 1"
    """
    if _typed:
        return shlex.join(["fedsmoo", *_typed[-1]])
    words = sys.orig_argv[1:]
    if not words or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return "python: a notebook or a prompt"
    return f"python: {shlex.join(words)}"
