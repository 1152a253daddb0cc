"""Files by name, from a folder, a tar or a zip. Archives are read in memory and never unpacked, so that no member can
write anywhere, whatever its name says."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedsmoo.core.errors import FedsmooError

LARGEST = 2 * 1024**3  # bytes of one member; more is no image data set, but may be an archive made to fill the memory

BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError, OSError)


@dataclass(frozen=True)
class Tree:
    """Named files and a way to read one."""

    where: str
    sizes: dict[str, int] = field(repr=False)
    _read: Callable[[str], bytes] = field(repr=False)
    times: dict[str, int] = field(default_factory=dict, repr=False)  # of the last change, in nanoseconds, if known

    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""
        if name not in self.sizes:
            raise FedsmooError(f"{self.where}: {name} is missing")
        if self.sizes[name] > LARGEST:
            raise FedsmooError(f"{self.where}: {name} claims {self.sizes[name]} bytes, more than any file of this kind")
        try:
            data = self._read(name)
        except BROKEN as error:
            raise FedsmooError(f"{self.where}: {name} cannot be read, it is damaged or truncated ({error})") from None
        if len(data) != self.sizes[name]:
            raise FedsmooError(f"{self.where}: {name} is truncated, {len(data)} of {self.sizes[name]} bytes")
        return data

    def below(self, prefix: str) -> Tree:
        """Return the part under a folder, with names relative to it."""
        if not prefix:
            return self
        start = prefix.rstrip("/") + "/"
        sizes = {n[len(start) :]: s for n, s in self.sizes.items() if n.startswith(start)}
        return Tree(f"{self.where}/{prefix}", sizes, lambda name: self._read(start + name))

    def visible(self) -> Tree:
        """Return the files that are not hidden, as those of ``.ipynb_checkpoints`` are: other programs leave them."""
        names = [n for n in self.sizes if not any(word.startswith(".") for word in n.split("/"))]
        return Tree(self.where, {n: self.sizes[n] for n in names}, self._read, {n: self.times[n] for n in names})

    def __contains__(self, name: str) -> bool:
        return name in self.sizes


def folder_tree(path: Path, depth: int = 3) -> Tree:
    """Return the files in a folder, down to some depth below it."""
    sizes: dict[str, int] = {}
    times: dict[str, int] = {}

    def scan(folder: Path, prefix: str, left: int) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    state = entry.stat()  # asked once per file: there may be 100,000
                    sizes[prefix + entry.name], times[prefix + entry.name] = state.st_size, state.st_mtime_ns
                elif entry.is_dir() and left:
                    scan(Path(entry.path), prefix + entry.name + "/", left - 1)

    try:
        scan(path, "", depth)
    except OSError as error:
        raise FedsmooError(f"{path}: cannot be read ({error.strerror or error})") from None
    return Tree(str(path), sizes, lambda name: (path / name).read_bytes(), times)


def file_tree(path: Path) -> Tree:
    """List a single file."""
    state = path.stat()
    return Tree(str(path), {path.name: state.st_size}, lambda _: path.read_bytes(), {path.name: state.st_mtime_ns})


def archive_tree(path: Path) -> Tree:
    """Return the regular files of a tar (of any compression) or zip archive; links and devices are not listed."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                sizes = {i.filename: i.file_size for i in archive.infolist() if not i.is_dir()}
            return Tree(str(path), sizes, _zip_reader(path))
        with tarfile.open(path) as archive:
            contents = {m.name: _member(archive, m) for m in archive if m.isreg() and m.size <= LARGEST}
    except FileNotFoundError:
        raise FedsmooError(f"{path}: no such file") from None
    except BROKEN as error:
        raise FedsmooError(f"{path}: damaged or truncated archive ({error}); get it again") from None
    return Tree(str(path), {n: len(b) for n, b in contents.items()}, contents.__getitem__)


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Read a member of a tar in the one pass that finds it, for a tar has no index."""
    file = archive.extractfile(member)
    data = file.read() if file else b""
    if len(data) != member.size:
        raise EOFError(f"{member.name} ends early")
    return data


def _zip_reader(path: Path) -> Callable[[str], bytes]:
    archive = zipfile.ZipFile(path)  # kept open: Tiny-ImageNet has 120,000 members
    return archive.read


def digest(data: bytes, like: str) -> str:
    """Return the checksum of some bytes in the notation of another one, such as ``md5:...`` or ``sha256:...``."""
    kind = like.partition(":")[0]
    return f"{kind}:{hashlib.new(kind, data, usedforsecurity=False).hexdigest()}"


def file_digest(path: Path, like: str) -> str:
    """Return what :func:`digest` does for a file, without reading it into memory at once."""
    kind = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"
