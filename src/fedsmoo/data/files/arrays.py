"""Arrays in ``.npy`` and ``.npz`` files that anybody may have made.

What a file announces is held against what it holds before any memory is taken for it, and nothing in it is executed.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.files.plain import open_plain
from fedsmoo.data.files.safe_pickle import load_pickle
from fedsmoo.data.files.tree import BROKEN

LONGEST_EMPTY = 1_000_000  # of an axis of an array without a value: walking along it would take for ever
UNPACKED, FOLD = 64 * 2**20, 100  # bytes from which an archive may not unpack to more than so many times its size
# What NumPy raises for damaged files, its parser of headers included.
DAMAGED = (*BROKEN, ValueError, TypeError, KeyError, AttributeError, SyntaxError, ArithmeticError, MemoryError)
REFUSED = (
    *DAMAGED,
    RuntimeError,
    tokenize.TokenError,
)  # of archives: other ways to pack, passwords; of headers: nested too deeply


def read_npy(path: Path, what: str) -> Any:
    """Return the array in a file; a ragged one, which NumPy keeps as a pickle, is read without running anything."""
    try:
        with open_plain(path) as file:
            if file is None:
                raise FedsmooError(f"{what}: no such file")
            return array_in(file, file.seek(0, 2), what, load_pickle)
    except REFUSED as error:
        raise FedsmooError(f"{what}: not a readable .npy ({error})") from None


def read_npz(path: Path, what: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Return arrays of an archive by name, those of ``names`` that there are, or all of them."""
    try:
        with open_plain(path) as file:
            if file is None:
                raise FedsmooError(f"{what}: no such file")
            with zipfile.ZipFile(file) as archive:
                inside = {i.filename.removesuffix(".npy"): i for i in archive.infolist() if i.filename.endswith(".npy")}
                wanted = {n: i for n, i in inside.items() if names is None or n in names}
                refuse_bomb(sum(i.file_size for i in wanted.values()), file.seek(0, 2), what)
                return {n: member(archive, i, what) for n, i in wanted.items()}
    except REFUSED as error:
        raise FedsmooError(f"{what}: not a readable .npz of plain arrays ({error})") from None


def refuse_bomb(unpacked: int, packed: int, what: str) -> None:
    """Refuse an archive that unpacks to many times its size, as those that are made to fill the memory."""
    if unpacked > max(UNPACKED, FOLD * packed):
        raise FedsmooError(
            f"{what}: {packed} bytes that unpack to {unpacked} are no data set; if they are, save them with np.savez"
        )


def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> np.ndarray:
    """Read one array of an archive."""
    with archive.open(info) as file:
        return array_in(file, info.file_size, what, refuse_pickle)


def refuse_pickle(data: bytes, what: str) -> Any:
    """Refuse an array of objects."""
    raise ValueError("an array of objects")


def array_in(file: IO[bytes], size: int, what: str, objects: Callable[[bytes, str], Any]) -> Any:
    """Read the array in a file of so many bytes; ``objects`` reads those that are kept as a pickle."""
    if file.seekable():
        file.seek(0)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    left = size - file.tell()
    if dtype.hasobject:
        return objects(file.read(left), what)
    count = math.prod(shape)
    if any(type(n) is not int or n < 0 for n in shape) or count * dtype.itemsize > left:
        raise ValueError(f"it announces {brief_shape(shape)} values of {dtype.itemsize} bytes, but holds {left} bytes")
    if count * dtype.itemsize == 0 and max(shape, default=0) > LONGEST_EMPTY:
        raise ValueError(f"it announces {brief_shape(shape)}, without a value")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def brief_shape(shape: Sequence[int]) -> str:
    return "x".join(str(n)[:20] for n in shape[:8]) or "1"
