"""Decoded data sets kept as one file that loads at the speed of the disk, and that is never trusted unchecked.

The file holds the arrays, the SHA-256 of each, and a fingerprint of the files they came from. A copy that is older than
its source, or whose bytes have changed, is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedsmoo.data.files.durable import make_folder, remove_leftovers, rename_durably, temporary_name
from fedsmoo.data.files.readers import PARTS, Arrays
from fedsmoo.data.files.tree import Tree

FORMAT = "2"  # of decoded copies: 1 had pixels of 16 bits cut off at 255


def user_cache() -> Path:
    """Return the folder for downloads and decoded copies: ``$FEDSMOO_DATA``, or ``fedsmoo`` in the user's cache."""
    chosen = os.environ.get("FEDSMOO_DATA")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedsmoo"


def fingerprint(tree: Tree) -> str:
    """Return what identifies the state of some files without reading them: place, names, sizes and times of change."""
    digest = hashlib.sha256(f"{FORMAT}\0{Path(tree.where).resolve()}".encode())
    for name in sorted(tree.sizes):
        digest.update(f"\0{name}\0{tree.sizes[name]}\0{tree.times[name]}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def cached(file: Path, key: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays in ``file`` if it is whole and has this key; otherwise those of ``build``, which replace it."""
    arrays = load(file, key)
    if arrays is None:
        arrays = build()
        with suppress(OSError):  # a folder that cannot be written costs speed the next time, nothing else
            save(file, key, arrays)
    return arrays


def save(file: Path, key: str, arrays: Arrays) -> None:
    """Write the arrays in one step: a reader sees the old file or the new one, never half of one."""
    from safetensors.numpy import save_file

    parts = {p: np.ascontiguousarray(getattr(arrays, p)) for p in PARTS}
    metadata = {"key": key, "sha256": json.dumps(_hashes(parts)), "class_names": json.dumps(arrays.class_names)}
    make_folder(file.parent)
    remove_leftovers(file)
    part = temporary_name(file)
    try:
        save_file(parts, part, metadata=metadata)
        rename_durably(part, file)
    finally:
        part.unlink(missing_ok=True)


def load(file: Path, key: str) -> Arrays | None:
    """Return the arrays, or ``None`` if the file is absent, of another key, or damaged in any way."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as store:
            metadata = store.metadata() or {}
            if metadata.get("key") != key:
                return None
            parts = {p: store.get_tensor(p) for p in PARTS}
        if json.loads(metadata["sha256"]) != _hashes(parts):
            return None
        names = json.loads(metadata["class_names"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return Arrays(**parts, class_names=None if names is None else tuple(names))


def _hashes(parts: dict[str, np.ndarray]) -> dict[str, str]:
    """Return the SHA-256 of every array, two at a time: hashing releases the interpreter lock."""
    with ThreadPoolExecutor(2) as pool:
        sums = pool.map(lambda a: hashlib.sha256(a.reshape(-1).view(np.uint8)).hexdigest(), parts.values())
        return {name: f"{parts[name].dtype}{parts[name].shape}{s}" for name, s in zip(parts, sums, strict=True)}
