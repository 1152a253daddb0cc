"""Every operation of this process on the files below a folder, and what is made to happen at one of them.

Counted are opening, writing, flushing, renaming, linking, removing and cutting files, making and removing folders, and
the statements of SQLite; those of other threads (the beat of a lease) are not, for they come at any moment.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.numpy
import safetensors.torch

from fedsmoo.runs.storage import checkpoint

FILLS = ("create", "write", "mkdir", "link", "sql")  # what a full disk refuses
NAMED = ("replace", "rename", "link")  # whose second argument is the name that changes
PLAIN = ("unlink", "remove", "mkdir", "rmdir", "truncate", "utime")
OPEN = ("fsync", "pwrite", "write", "ftruncate")  # of open files
FSYNC, STAT = os.fsync, os.fstat
Act = Callable[[int, str, Callable[[], Any]], None]  # which operation it is, what it does, and how to do half of it


def nothing() -> None:
    """Do no half of an operation."""


class Operations:
    """Counts the operations on files below a folder, notes what each is, and calls ``act`` before each."""

    def __init__(self, root: Path, act: Act = lambda number, what, half: None) -> None:
        self.root, self.act = str(root.resolve()), act
        self.names: list[str] = []

    def __call__(self, what: str, path: Any, half: Callable[[], Any] = nothing) -> None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        place = os.path.abspath(os.fspath(path))
        if place.startswith(self.root) and threading.current_thread() is threading.main_thread():
            self.names.append(f"{what} {os.path.relpath(place, self.root)}")
            self.act(len(self.names), what, half)

    def before(self, what: str, inner: Any, which: int = 0) -> Any:
        """Return a function that counts before it does its work on the file that is one of its arguments."""

        @functools.wraps(inner)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self(what, args[which])
            return inner(*args, **kwargs)

        return wrapped

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Count from now on; flushing takes no time, for nothing here loses what was written."""
        with ExitStack() as held:

            def put(owner: Any, name: str, function: Any) -> None:
                held.enter_context(patch.object(owner, name, function))

            os_open, open_file, connect = os.open, io.open, sqlite3.connect
            put(os, "fsync", self.before("fsync", STAT))
            for name in (*PLAIN, *OPEN[1:]):
                put(os, name, self.before(name.removeprefix("p").removeprefix("f"), getattr(os, name)))
            for name in NAMED:
                put(os, name, self.before(name, getattr(os, name), which=1))
            put(os, "open", functools.partial(opened_by_number, self, os_open))
            for owner in (io, builtins):
                put(owner, "open", functools.partial(opened, self, open_file))
            put(checkpoint, "save_file", functools.partial(saved, safetensors.torch.save))
            put(safetensors.numpy, "save_file", functools.partial(saved, safetensors.numpy.save))
            put(sqlite3, "connect", functools.partial(connected, self, connect))
            yield


def opened_by_number(count: Operations, inner: Any, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    """Open a file as ``os.open`` does."""
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    count(("create" if not os.path.lexists(path) else "open") if writes else "read", path)
    return inner(path, flags, *args, **kwargs)


def opened(count: Operations, inner: Any, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    """Open a file as ``open`` does; one that may be written counts what is written."""
    if isinstance(path, int):
        return inner(path, mode, *args, **kwargs)
    writes = set(mode) & set("wax+")
    count(("create" if not os.path.lexists(path) else "open") if writes else "read", path)
    file = inner(path, mode, *args, **kwargs)
    return Written(file, path, count) if writes else file


class Written:
    """A file that counts every write; half of one is the first half of what was to be written."""

    def __init__(self, file: Any, path: Any, count: Operations) -> None:
        self.file, self.path, self.count = file, path, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()

    def write(self, content: Any) -> int:
        def half() -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()

        self.count("write", self.path, half)
        return self.file.write(content)


def saved(serialise: Any, tensors: Any, path: Any, metadata: Any = None) -> None:
    """Write tensors as ``save_file`` does, by operations that can be counted."""
    with open(path, "wb") as f:
        f.write(serialise(tensors, metadata))


def connected(count: Operations, inner: Any, path: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
    """Open a database that counts every statement."""
    place = str(path).removeprefix("file:").partition("?")[0]

    class Counted(sqlite3.Connection):
        def execute(self, statement: str, *rest: Any) -> sqlite3.Cursor:
            spoken(count, "sql", place)
            return super().execute(statement, *rest)

    spoken(count, "sql", place)
    return inner(path, *args, factory=Counted, **kwargs)


def spoken(count: Operations, what: str, place: str) -> None:
    """Count a statement; an error of the disk is one of SQLite."""
    try:
        count(what, place)
    except OSError as e:
        full = e.errno == errno.ENOSPC
        raise sqlite3.OperationalError("database or disk is full" if full else "disk I/O error") from e


def kill_at(wanted: int) -> Act:
    """Kill this process at an operation, which is half done."""

    def act(number: int, what: str, half: Callable[[], Any]) -> None:
        if number == wanted:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def stop_at(wanted: int) -> Act:
    """Stop this process before an operation, until somebody lets it go on."""

    def act(number: int, what: str, half: Callable[[], Any]) -> None:
        if number == wanted:
            os.kill(os.getpid(), signal.SIGSTOP)

    return act


def fail_at(wanted: int, error: int) -> Act:
    """Let an operation fail, half done; where the disk is full, all further ones fail that need room."""

    def act(number: int, what: str, half: Callable[[], Any]) -> None:
        if number == wanted or (number > wanted and error == errno.ENOSPC and what in FILLS):
            half()
            raise OSError(error, os.strerror(error))

    return act


def refused_by(error: int, name: str) -> bool:
    """Return whether an operation, as it is called in ``Operations.names``, may fail with an error."""
    return error != errno.ENOSPC or name.partition(" ")[0] in FILLS
