"""Read files that anybody may have made: plain ones alone, of bounded size, with a bounded number of values.

Nothing else in the package opens what a stranger may have sent. A pipe or a device would hang the reader, a link lead
it elsewhere, and a few bytes can announce terabytes.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedsmoo.core.errors import FedsmooError

MAX_BYTES = 64 * 2**20  # of a file that a stranger wrote: a run writes nothing larger that is read at once
MAX_VALUES = 2_000_000  # in JSON: 64 MB of "[],[],[]" would take 1.5 GB
NO_ANSWER = (errno.EIO, errno.ENXIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
NOT_A_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


class DiskError(FedsmooError):
    """The disk is full, or does not answer: no fault of the run, and no other run would fare better."""


def read_error(e: OSError) -> type[FedsmooError]:
    """Return the type of error for a file that cannot be read: ``DiskError`` if it is the disk that does not answer."""
    return DiskError if e.errno in NO_ANSWER else FedsmooError


@contextmanager
def open_plain(path: Path, links: bool = True, limit: int | None = None) -> Iterator[BinaryIO | None]:
    """Open a file to be read; ``None`` if there is none, or none any more: other processes remove files at any moment.

    Raises ``FedsmooError`` for what is no plain file (a pipe or a device could hang the reader), for a file of more
    than ``limit`` bytes, for one that cannot be read and, without ``links``, for a symbolic link.
    """
    try:
        fd = os.open(path, os.O_RDONLY | NO_WAIT | (0 if links else NO_LINKS))
    except ValueError as e:  # a name with a zero in it
        raise FedsmooError(f"{str(path)!r} is no name of a file") from e
    except OSError as e:
        if e.errno not in NOT_A_FILE:
            linked = not links and path.is_symlink()
            raise read_error(e)(f"{path} cannot be read: {'it is a link' if linked else e.strerror}") from e
        yield None
        return
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise FedsmooError(f"{path} cannot be read: it is no plain file")
        if limit is not None and found.st_size > limit:
            raise FedsmooError(f"{path} cannot be read: it has {found.st_size} bytes, more than {limit}")
        if stat.S_ISDIR(found.st_mode):
            yield None
        else:
            with os.fdopen(fd, "rb", closefd=False) as f:
                yield f
    finally:
        os.close(fd)


def read_plain(path: Path, links: bool = True, limit: int | None = None) -> bytes | None:
    """Read a file; ``None`` if there is none. The arguments, and what is refused, are those of :func:`open_plain`."""
    try:
        with open_plain(path, links, limit) as f:
            return None if f is None else f.read(-1 if limit is None else os.fstat(f.fileno()).st_size)
    except OSError as e:
        raise read_error(e)(f"{path} cannot be read: {e.strerror}") from e


def parse_json(content: bytes, path: Path, errors: str = "strict", limit: int = MAX_VALUES) -> Any:
    """Return the JSON value in a file's bytes; ``FedsmooError`` if it is damaged, or holds more than so many values.

    ``errors`` as in ``bytes.decode``. Of lists and tables, which take more memory, there are ``MAX_VALUES`` at most.
    """
    holders, values = (sum(map(content.count, marks)) for marks in ((b"[", b"{"), (b"[", b"{", b",")))
    if holders > MAX_VALUES or values > limit:
        raise FedsmooError(f"{path} cannot be read: it holds more than {limit} values")
    try:
        return json.loads(content.decode("utf-8", errors))
    except ValueError as e:
        raise FedsmooError(f"{path} cannot be read: {e}") from e
    except RecursionError as e:
        raise FedsmooError(f"{path} cannot be read: it is nested too deeply") from e


def parse_table(content: bytes, path: Path, errors: str = "strict") -> dict[str, Any]:
    """Return the JSON object in a file's bytes; ``FedsmooError`` if it holds none."""
    value = parse_json(content, path, errors)
    if not isinstance(value, dict):
        raise FedsmooError(f"{path} cannot be read: it holds no JSON object")
    return value
