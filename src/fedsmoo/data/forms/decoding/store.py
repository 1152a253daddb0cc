"""Data sets that were decoded once, kept as arrays in a folder of the cache and mapped into memory, not read.

A folder holds ``x_train.npy`` and so on, and ``facts.json``: what else the data set says, and its fingerprint. Copies
up to a gigabyte are hashed at every opening. Of larger ones the sizes and times of change must be those that were
noted; what is damaged or changed is decoded again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.check import PARTS
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.cache import user_cache
from fedsmoo.data.files.durable import SILENCE, is_alive, make_folder, sync_folder
from fedsmoo.data.files.plain import parse_table, read_plain
from fedsmoo.data.fingerprint import Fingerprint

# Version 1 had pixels of 16 bits cut off at 255, version 2 labels filled up that were not one for each token.
VERSION, FACTS = 3, "facts.json"
HASHED = 2**30  # bytes up to which a copy is hashed when it is opened
TUPLES = ("mean", "std", "class_names", "inputs")
INDICES = ("natural", "natural_test")
LEFT_OUT = (*PARTS, *INDICES, "weights")  # of the fields: no form has weights


def folder_of(key: str) -> Path:
    """Return the folder of the decoded copy with a key."""
    return user_cache() / "decoded" / f"form-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def map_array(path: Path) -> Tensor:
    """Return the array in a file as a tensor that is mapped into memory: pages are read when they are used.

    Written to, it is a copy: the file stays as it is.
    """
    found = np.load(path, mmap_mode=None if path.stat().st_size < 256 else "c", allow_pickle=False)
    return torch.from_numpy(found)


def load_copy(key: str) -> Dataset | None:
    """Return the copy that was kept under a key; ``None`` if there is none, or none that can be trusted."""
    folder = folder_of(key)
    try:
        content = read_plain(folder / FACTS)
        if content is None:
            return None
        facts = parse_table(content, folder / FACTS)
        if facts["version"] != VERSION or facts["key"] != key or facts["files"] != stamps(folder, list(facts["files"])):
            return None
        fields: dict[str, Any] = {n: map_array(folder / f"{n}.npy") for n in PARTS}
        fields |= {n: read_index_lists(folder, n) for n in INDICES if f"{n}.npy" in facts["files"]}
        fields |= {n: tuple(v) if n in TUPLES and v is not None else v for n, v in facts["fields"].items()}
        data = Dataset(**fields)
        data.__dict__["fingerprint"] = Fingerprint.read(facts["fingerprint"], str(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, FedsmooError):
        return None
    return data


def remove_copy(key: str) -> None:
    """Remove the copy with a key."""
    shutil.rmtree(folder_of(key), ignore_errors=True)


def stamps(folder: Path, names: list[str]) -> dict[str, str]:
    """Return what files hold, as hashes, or, of large copies, their sizes and times of change."""
    total = sum((folder / n).stat().st_size for n in names)
    return {n: stamp(folder / n, total <= HASHED) for n in names}


def stamp(path: Path, hashed: bool) -> str:
    if hashed:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


def read_index_lists(folder: Path, name: str) -> tuple[Tensor, ...]:
    """Read the clients' index lists from one flat array: how many lists, the length of each, then all indices."""
    flat = np.load(folder / f"{name}.npy", allow_pickle=False)
    counts = flat[1 : 1 + int(flat[0])]
    return tuple(torch.from_numpy(i.copy()) for i in np.split(flat[1 + len(counts) :], np.cumsum(counts)[:-1]))


def save_copy(key: str, folder: Path, data: Dataset) -> Dataset:
    """Complete a folder that holds the arrays of a data set, give it its name, and return what it holds, mapped.

    ``OSError`` if it cannot be written.
    """
    files = [f"{n}.npy" for n in PARTS]
    for name in PARTS:  # what the checks made of an array, where that is another one than was decoded
        tensor, path = getattr(data, name), folder / f"{name}.npy"
        found = np.load(path, mmap_mode="r" if len(tensor) else None) if path.is_file() else None
        if found is None or tensor.shape != found.shape or tensor.numpy().dtype != found.dtype:
            beside = path.with_name(f"{name}.new.npy")  # what is saved may be mapped from the file that it replaces
            np.save(beside, tensor.numpy())
            os.replace(beside, path)
    for name in INDICES:
        lists = getattr(data, name)
        if lists is not None:
            flat = [np.array([len(lists), *map(len, lists)]), *(i.numpy() for i in lists)]
            np.save(folder / f"{name}.npy", np.concatenate(flat).astype(np.int64))
            files.append(f"{name}.npy")
    for name in files:
        with (folder / name).open("rb+") as file:
            os.fsync(file.fileno())
    facts = {
        "version": VERSION,
        "key": key,
        "files": stamps(folder, files),
        "fields": {f.name: getattr(data, f.name) for f in dataclasses.fields(data) if f.name not in LEFT_OUT},
        "fingerprint": dataclasses.asdict(data.fingerprint),
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    remove_copy(key)  # what was kept there, but could not be trusted
    with suppress(OSError):  # another process was first
        os.rename(folder, folder_of(key))
        sync_folder(folder.parent)
    return load_copy(key) or data


def load_or_build(key: str | None, build: Callable[[Path], Dataset]) -> Dataset:
    """Return the data set with a key from the cache, or what ``build`` makes in a folder, which is then kept.

    Without a key it is kept by this process alone: files that are mapped may have lost their names.
    """
    found = None if key is None else load_copy(key)
    if found is not None:
        return found
    folder = user_cache() / "decoded" / f".form.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    make_folder(folder)
    remove_leftovers(folder.parent)
    try:
        data = build(folder)
        return data if key is None else save_copy(key, folder, data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_or_build_in_memory(key: str, build: Callable[[], Dataset]) -> Dataset:
    """Return the data set with a key from the cache, or what ``build`` makes in memory, which is kept if it can be."""
    try:
        return load_or_build(key, lambda folder: build())
    except OSError:  # a folder that cannot be written costs time, nothing else
        return build()


def remove_leftovers(folder: Path) -> None:
    """Remove folders that processes which have ended were still decoding into."""
    with suppress(OSError):
        for beside in folder.glob(".form.*.tmp"):
            pid = beside.name.split(".")[2]
            if pid.isdecimal() and not is_alive(int(pid)) and time.time() - beside.lstat().st_mtime > SILENCE:
                shutil.rmtree(beside, ignore_errors=True)
