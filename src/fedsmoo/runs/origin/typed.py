"""The command behind a result, as it was typed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
    if not words or hasattr(sys, "ps1") or ipython() is not None:
        return "python: a notebook or a prompt"
    return f"python: {shlex.join(words)}"


def ipython() -> Any:
    """Return the shell of IPython that runs this program: a notebook's, or a prompt's; ``None`` without one.

    That some library has imported IPython does not make one.
    """
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
