"""Write files whole or not at all; read back what they hold, checked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmoo.core import FedsmooError
from fedsmoo.data.files.durable import make_folder as make_folder
from fedsmoo.data.files.durable import remove_leftovers as remove_leftovers
from fedsmoo.data.files.durable import remove_old as remove_old
from fedsmoo.data.files.durable import sync_folder, temporary_name
from fedsmoo.data.files.plain import MAX_BYTES, open_plain, parse_json, parse_table, read_error, read_plain
from fedsmoo.data.files.plain import DiskError as DiskError
from fedsmoo.runs.storage.fence import fence, partial_name

if TYPE_CHECKING:
    from torch import Tensor

LINES = 1000  # of metrics that are parsed at once
DAMAGED, MOST_VALUES = 100_000, 1_000_000  # lines of metrics that are left out; values in one


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
    part = partial_name(path)
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
    parts = {path: temporary_name(path) for path in contents}
    before = {path: temporary_name(path, ".old") for path in contents}
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


def sha256_of_plain(path: Path) -> str:
    """Return the SHA-256 of a run's file; ``FedsmooError`` if it is missing, unreadable or no plain file."""
    try:
        with open_plain(path, links=False) as f:
            if f is None:
                raise FedsmooError(f"{path} is missing")
            return hashlib.file_digest(f, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError as e:
        raise read_error(e)(f"{path} cannot be read: {reason(e)}") from e


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; empty if there is no file. Raises as :func:`read_plain`, or if it is damaged."""
    content = read_plain(path)
    return {} if content is None else parse_table(content, path)


def seal(value: dict[str, Any]) -> bytes:
    """Return a JSON object with its own hash on the last line."""
    text = json.dumps(value, indent=1, default=lambda v: v.item() if isinstance(v, np.generic) else str(v))
    return f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def read_sealed(path: Path, form: str) -> dict[str, Any]:
    """Read a manifest of this format that :func:`seal` made; ``FedsmooError`` if it is damaged or another's."""
    content = read_plain(path, links=False, limit=MAX_BYTES)
    if content is None:
        raise FedsmooError(f"{path} cannot be read: it is missing")
    text, _, digest = content.rstrip(b"\n").rpartition(b"\n")
    value = parse_json(text, path) if hashlib.sha256(text).hexdigest().encode() == digest else None
    if isinstance(value, dict) and value.get("format") != form:
        raise FedsmooError(f"{path} has the format {value.get('format')!r}, this version reads {form!r}")
    if not isinstance(value, dict) or not is_sound(value):
        raise FedsmooError(f"{path} is damaged or was not written by fedsmoo")
    return value


def copy_aligned(v: Tensor) -> Tensor:
    """Copy a tensor out of a file: its alignment there would change the last bits of products."""
    return v.clone()


def on_host(v: Tensor) -> Tensor:
    """Return a tensor in host memory that owns all of its storage: files hold storages."""
    v = v.detach().cpu().contiguous()
    return v if v.untyped_storage().nbytes() == v.nbytes else v.clone()


def copy_shared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with another: one that a method keeps under two names is written twice."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, v in tensors.items():
        place = v.untyped_storage().data_ptr()
        out[name] = v.clone() if place in seen else v
        seen.add(place)
    return out


def is_sound(manifest: dict[str, Any]) -> bool:
    """Return whether the parts of a manifest have the types that they should have, and name files beside it alone."""
    kinds = {"round": int, "server": str, "about": dict, "rows": dict, "files": dict, "metrics": dict}
    if not all(isinstance(manifest.get(name), kind) for name, kind in kinds.items()):
        return False
    files, mark = manifest["files"], manifest["metrics"]
    if {*map(type, files.values())} - {str} or any(Path(n).name != n or n in (".", "..") for n in files):
        return False
    rows = {*manifest["rows"].values()} if {*map(type, manifest["rows"].values())} <= {str} else {""}
    named = {manifest["server"], *rows} <= files.keys() and all(c.isdecimal() and len(c) < 19 for c in manifest["rows"])
    whole = set(mark) == {"bytes", "sha256"} and isinstance(mark["bytes"], int) and isinstance(mark["sha256"], str)
    return named and whole


def refuse_changed(path: Path, content: bytes, expected: Any) -> None:
    """Raise ``FedsmooError`` if what was read from a file is not what a SHA-256 says; older runs may have none."""
    if expected is not None and hashlib.sha256(content).hexdigest() != expected:
        raise FedsmooError(f"{path} is not as it was written (its SHA-256 differs)")


def parse_lines(content: bytes) -> Iterator[Any]:
    """Yield the JSON values in lines, many at a time where that works, which is quicker; damaged lines are left out."""
    lines, damaged = io.BytesIO(content), 0
    while block := list(islice(lines, LINES)):
        try:
            yield from parse_line(b"[" + b",".join(block) + b"]")
        except (ValueError, RecursionError):
            for line in block:
                try:
                    yield parse_line(line.decode("utf-8", "replace").encode())
                except (ValueError, RecursionError):
                    damaged += 1
                    if damaged > DAMAGED:  # no run leaves so many
                        return


def parse_line(line: bytes) -> Any:
    """Return the JSON value in a line; ``ValueError`` if there is none, or one that would fill the memory."""
    if len(line) > MOST_VALUES and line.count(b",") + line.count(b"[") > MOST_VALUES:
        raise ValueError("too many values")
    return json.loads(line)
