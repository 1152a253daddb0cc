"""Write files whole or not at all; read files that others may remove, damage or replace by a pipe."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmoo.core import FedsmooError
from fedsmoo.data.files.durable import make_folder as make_folder
from fedsmoo.data.files.durable import remove_leftovers as remove_leftovers
from fedsmoo.data.files.durable import remove_old as remove_old
from fedsmoo.data.files.durable import sync_folder, temporary
from fedsmoo.runs.storage.fence import fence, part_of

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 64 * 2**20  # of a file that a stranger wrote: a run writes nothing larger that is read here
NOT_A_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
NO_ANSWER = (errno.EIO, errno.ENXIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


class DiskError(FedsmooError):
    """The disk is full, or does not answer: no fault of the run, and no other run would fare better."""


def reason(e: Exception) -> str:
    """Return why something could not be written, in the system's words where an exception has them."""
    return getattr(e, "strerror", None) or str(e)


def write_durably(path: Path, content: bytes | str, sync: bool = True) -> None:
    """Replace a file by new content, the whole of it or nothing, also if the power is cut; ``OSError`` if that fails.

    Args:
        path: the file.
        content: bytes, or text that is written as UTF-8.
        sync: flush the folder, too; without, the caller does so once it has written several files.
    """
    part = part_of(path)
    with renamed_at_the_end(part, path):
        write_flushed(part, content)
    if sync:
        sync_folder(path.parent)


def write_flushed(path: Path, content: bytes | str) -> None:
    """Write a file and flush it to the disk; ``OSError`` if that fails."""
    with path.open("wb") as f:
        f.write(content.encode() if isinstance(content, str) else content)
        f.flush()
        os.fsync(f.fileno())


def write_together(contents: Mapping[Path, bytes | str]) -> None:
    """Replace several files by new content, all of them or none: ``OSError`` if one fails, and no file is changed.

    All are on the disk under another name before the first gets its place, and the old ones are kept until the last
    has. A process that is killed meanwhile leaves every file whole, the old or the new, and its own files beside them.
    """
    parts = {path: temporary(path) for path in contents}
    before = {path: temporary(path, ".old") for path in contents}
    replaced: list[Path] = []
    try:
        for path, content in contents.items():
            write_flushed(parts[path], content)
            keep_aside(path, before[path])
        for path, part in parts.items():
            os.replace(part, path)
            replaced.append(path)
        for folder in dict.fromkeys(path.parent for path in contents):
            sync_folder(folder)
    except BaseException:
        for path in replaced:
            if before[path].exists():
                os.replace(before[path], path)
            else:
                path.unlink()
        raise
    finally:
        for left in (*parts.values(), *before.values()):
            with suppress(OSError):
                left.unlink()


def keep_aside(path: Path, aside: Path) -> None:
    """Give a file a second name, so that it is there when the first is given to another; nothing if there is none."""
    if path.exists():
        try:
            os.link(path, aside)
        except OSError:  # a disk that knows no second names
            shutil.copyfile(path, aside)


@contextmanager
def renamed_at_the_end(part: Path, path: Path) -> Iterator[None]:
    """Rename a file once it is written, if the fence lets it pass; else, or if something fails, remove it."""
    try:
        yield
        with fence().held():
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def sha256_of(path: Path, sync: bool = False) -> str:
    """Return the SHA-256 of a file; ``sync`` flushes it to the disk first."""
    with path.open("rb+" if sync else "rb") as f:
        if sync:
            os.fsync(f.fileno())
        return hashlib.file_digest(f, "sha256").hexdigest()  # type: ignore[arg-type]


def digest_in(path: Path) -> str:
    """Return the SHA-256 of a checkpoint's file; ``FedsmooError`` if it is missing or unreadable."""
    try:
        return sha256_of(path)
    except FileNotFoundError as e:
        raise FedsmooError(f"{path} is missing") from e
    except OSError as e:
        raise unreadable(e)(f"{path} cannot be read: {reason(e)}") from e


def unreadable(e: OSError) -> type[FedsmooError]:
    """Return what to raise for a file that cannot be read: whether it is the disk that does not answer, or the file."""
    return DiskError if e.errno in NO_ANSWER else FedsmooError


def read_plain(path: Path, links: bool = True, limit: int | None = None) -> bytes | None:
    """Read a file; ``None`` if there is none, or none any more: other processes remove files at any moment.

    Raises ``FedsmooError`` for what is no plain file (a pipe or a device could hang the reader), for a file of more
    than ``limit`` bytes, for one that cannot be read and, without ``links``, for a symbolic link.
    """
    try:
        fd = os.open(path, os.O_RDONLY | NO_WAIT | (0 if links else NO_LINKS))
    except OSError as e:
        if e.errno in NOT_A_FILE:
            return None
        linked = not links and path.is_symlink()
        raise unreadable(e)(f"{path} cannot be read: {'it is a link' if linked else reason(e)}") from e
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise FedsmooError(f"{path} cannot be read: it is no plain file")
        if limit is not None and found.st_size > limit:
            raise FedsmooError(f"{path} cannot be read: it has {found.st_size} bytes, more than {limit}")
        with os.fdopen(fd, "rb", closefd=False) as f:
            return f.read(-1 if limit is None else found.st_size)
    except OSError as e:
        raise unreadable(e)(f"{path} cannot be read: {reason(e)}") from e
    finally:
        os.close(fd)


def parse_json(content: bytes, path: Path, errors: str = "strict") -> Any:
    """Return the JSON value in a file's bytes; ``FedsmooError`` if it is damaged. ``errors`` as in ``bytes.decode``."""
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


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; empty if there is no file. Raises as :func:`read_plain`, or if it is damaged."""
    content = read_plain(path)
    return {} if content is None else parse_table(content, path)


def seal(value: dict[str, Any]) -> bytes:
    """Return a JSON object with its own hash on the last line."""
    text = json.dumps(value, indent=1, default=lambda v: v.item() if isinstance(v, np.generic) else str(v))
    return f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def unsealed(path: Path) -> dict[str, Any]:
    """Read what :func:`seal` made; ``FedsmooError`` if it is damaged."""
    try:
        text, _, digest = path.read_bytes().rstrip(b"\n").rpartition(b"\n")
        value = json.loads(text) if hashlib.sha256(text).hexdigest().encode() == digest else None
    except OSError as e:
        raise unreadable(e)(f"{path} cannot be read: {reason(e)}") from e
    except ValueError as e:
        raise FedsmooError(f"{path} cannot be read: {e}") from e
    if not isinstance(value, dict):
        raise FedsmooError(f"{path} is damaged or was not written by fedsmoo")
    return value


def aligned(v: Tensor) -> Tensor:
    """Copy a tensor out of a file: its alignment there would change the last bits of products."""
    return v.clone()


def on_host(v: Tensor) -> Tensor:
    """Return a tensor in host memory that owns all of its storage: files hold storages."""
    v = v.detach().cpu().contiguous()
    return v if v.untyped_storage().nbytes() == v.nbytes else v.clone()


def unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with another: one that a method keeps under two names is written twice."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, v in tensors.items():
        place = v.untyped_storage().data_ptr()
        out[name] = v.clone() if place in seen else v
        seen.add(place)
    return out
