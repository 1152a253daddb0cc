"""What a user's data set is, without decoding it: its state, its code, and the files that its state names."""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core.blame import is_users

FILES = 200_000  # that are looked at, at most: beyond, nothing is kept
DEEP = 6


class TooMany(Exception):
    """More files than are looked at."""


def state_key(value: Any) -> str | None:
    """Return a hash of an object's state, the source of its classes, and sizes and times of the files it names.

    ``None`` where the state cannot be written down (functions without a name), or names too many files.
    """
    digest = hashlib.sha256()
    try:
        digest.update(pickle.dumps(value, protocol=5))
        for source in sources(value):
            digest.update(source.encode("utf-8", "surrogatepass"))
        for line in files(value):
            digest.update(line.encode("utf-8", "surrogatepass"))
    except Exception:  # pickling runs code of the user's: whatever it raises, the object has no key
        return None
    return digest.hexdigest()


def members(value: Any, depth: int = DEEP, seen: set[int] | None = None) -> Iterator[Any]:
    """Return an object and what it holds: attributes, items of lists and dicts, down to some depth."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    if depth == 0 or isinstance(value, str | bytes):
        return
    if isinstance(value, dict):
        inside: Any = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    elif isinstance(value, np.ndarray):
        inside = value.tolist() if value.dtype.kind in "OU" else ()
    else:
        inside = getattr(value, "__dict__", {}).values()
    for one in inside:
        if not isinstance(one, int | float | bool | None):
            yield from members(one, depth - 1, seen)


def sources(value: Any) -> list[str]:
    """Return the source of the user's classes and functions that an object is made of."""
    found: dict[str, str] = {}
    for one in members(value):
        for cls in type(one).__mro__ if not isinstance(one, type) else one.__mro__:
            add_source(cls, found)
        if inspect.isfunction(one) or inspect.ismethod(one):
            add_source(one, found)
    return [found[name] for name in sorted(found)]


def add_source(thing: Any, found: dict[str, str]) -> None:
    """Note the whole file of a class or function of the user's: what it calls counts as well."""
    try:
        file = inspect.getsourcefile(thing)
        if file is not None and file not in found and is_users(file):
            found[file] = Path(file).read_text(encoding="utf-8", errors="replace")
    except (TypeError, OSError):  # built in, or typed into a prompt: a class of a notebook is hashed by its cells
        code = getattr(thing, "__code__", None)
        if code is not None:
            found[repr(thing.__qualname__)] = code.co_code.hex() + repr(code.co_consts)


def files(value: Any) -> Iterator[str]:
    """Return size and time of change of every file that an object names, or that lies in a folder which it names."""
    left = FILES
    for one in members(value):
        if not isinstance(one, str | os.PathLike) or len(str(one)) > 4096:
            continue
        path = Path(one)
        if os.sep not in str(one) and not path.suffix:
            continue  # a word, not a path
        try:
            found = path.stat()
            inside = [path] if path.is_file() else sorted(walk(path, left))
        except (OSError, ValueError):
            continue
        left -= len(inside)
        if left < 0:
            raise TooMany
        yield f"{path.resolve()} {found.st_size if path.is_file() else 0}"
        for file in inside:
            stat = file.stat()
            yield f"{file} {stat.st_size} {stat.st_mtime_ns}"


def walk(folder: Path, most: int) -> Iterator[Path]:
    """Return the files below a folder; raise ``TooMany`` beyond a number."""
    for above, _, names in os.walk(folder):
        for name in names:
            most -= 1
            if most < 0:
                raise TooMany
            yield Path(above) / name
