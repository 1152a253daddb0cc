"""Whose line it was: the place in a user's own file that an error, or a broken rule, comes from."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType
from typing import NamedTuple

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = tuple({sysconfig.get_paths()[n] + os.sep for n in ("stdlib", "platstdlib", "purelib", "platlib")})
LOOKING = ("core/blame.py", "core/contract/")
# Code of ours that a method calls or inherits: the line to blame is the one that called it.
THROUGH = ("core/algorithm.py", "core/gradient.py", "core/local.py", "core/round.py", "core/vectors.py", "algorithms/")


class Place(NamedTuple):
    """A line in a file, and the function that it stands in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        near = os.path.relpath(self.file) if os.path.isabs(self.file) else self.file
        return f"{self.file if near.startswith('..') else near}:{self.line} in {self.function}"


@cache
def path_in_package(file: str) -> str | None:
    """Return the path of a file inside this package, with slashes; ``None`` for any other."""
    return file[len(PACKAGE) :].replace(os.sep, "/") if file.startswith(PACKAGE) else None


@cache
def is_users(file: str, function: str = "") -> bool:
    """Return whether code is a user's: neither this package's nor a library's, nor made by ``dataclass``."""
    made = file.startswith("<frozen") or (file == "<string>" and function.startswith("__"))
    return not made and path_in_package(file) is None and not file.startswith(LIBRARIES)


def stack_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames and lines of an error's traceback, the deepest first, without those of the checks."""
    stack = list(traceback.walk_tb(error.__traceback__))[::-1]
    return [(f, line) for f, line in stack if not (path_in_package(f.f_code.co_filename) or "").startswith(LOOKING)]


def calling_frames() -> Iterator[tuple[FrameType, int]]:
    """Return the frames and lines that led here, the deepest first, without those of the checks themselves."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (path_in_package(frame.f_code.co_filename) or "").startswith(LOOKING):
        frame = frame.f_back
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def user_frames(stack: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    """Return the user's frames at the deep end of a stack, up to the first frame of ours outside of a method."""
    for frame, line in stack:
        file = frame.f_code.co_filename
        inside = path_in_package(file)
        if inside is not None and not inside.startswith(THROUGH):
            break
        if is_users(file, frame.f_code.co_name):
            yield frame, line


def place_of(stack: Iterable[tuple[FrameType, int]]) -> Place | None:
    """Return the user's line at the deep end of a stack, if it is a user's."""
    for frame, line in user_frames(stack):
        return Place(frame.f_code.co_filename, line, frame.f_code.co_name)
    return None


def in_brief(error: BaseException) -> str:
    """Return an error's type and the first line of what it says.

    >>> in_brief(KeyError("boom"))
    "KeyError: 'boom'"
    """
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def declared_at(cls: type, name: str = "") -> Place | str:
    """Return the line of a class, or of an assignment in it."""
    linecache.checkcache()
    try:
        lines, start = inspect.getsourcelines(cls)
        file = inspect.getsourcefile(cls) or cls.__module__
    except (OSError, TypeError):  # typed at a prompt
        return cls.__name__
    at = rf"\s+{name}\s*[:=]" if name else rf"class\s+{cls.__name__}\b"
    offset = next((k for k, line in enumerate(lines) if re.match(at, line)), 0)
    return Place(file, start + offset, cls.__name__)
