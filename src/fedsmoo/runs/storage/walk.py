"""Find the run folders below a folder: one rule for every command that takes a folder of runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedsmoo.core.errors import FedsmooError, as_path
from fedsmoo.runs.storage.names import CHECKPOINT, CONFIG, FILES, METRICS, MODEL

DEPTH = 4  # levels below a given folder
Folders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # one, or several
Entries = dict[str, os.DirEntry[str]]  # what a folder holds, by name


def run_folders(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield the run folders at or below some folders, in order of name, each once.

    A run folder holds a config and another file of a run; below one there is no other. A project that has a
    ``config.toml`` of its own is none, and its runs are found. Hidden folders (``.git``) are left out, and so is what
    cannot be opened. Symbolic links are not followed: a stranger may have made them. The given folders may be links.
    """
    seen: set[str] = set()
    for root in roots:
        for found in runs_below(str(root)):
            if found.real not in seen:
                seen.add(found.real)
                yield Path(found.path)


def find_runs(paths: Sequence[Path], missing_ok: bool = False) -> list[Path]:
    """Return the run folders at or below the given folders, which strangers may have made: see :func:`run_folders`.

    Raises ``FedsmooError`` for what is no folder, unless ``missing_ok``.
    """
    for path in paths:
        if not missing_ok and not path.is_dir():
            raise FedsmooError(f"{path} is not a folder: give run folders, or a folder that holds some")
    return list(run_folders(paths))


def require_runs(folders: Folders) -> list[Path]:
    """Return the run folders at or below some folders, as :func:`find_runs`; ``FedsmooError`` if there is none."""
    several = folders if isinstance(folders, Iterable) and not isinstance(folders, str) else [folders]
    paths = [as_path(folder, "a run folder") for folder in several]
    found = find_runs(paths)
    if not found:
        raise FedsmooError(f"no run folder in {', '.join(map(str, paths))}: it holds a {CONFIG} and a {METRICS}")
    return found


def stamped_folders(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the run folders at or below a folder, relative to it, each with a stamp that changes when its files do."""
    for found in runs_below(str(root)):
        yield found.path[len(str(root)) :].lstrip(os.sep) or ".", stamp(found.entries)


def stamp(entries: Entries, names: Iterable[str] = FILES) -> str:
    """Return the sizes and times of change of files in a folder."""
    return ",".join(file_stamp(entries[n]) if n in entries else "-" for n in names)


def file_stamp(entry: os.DirEntry[str]) -> str:
    """Return the time of change and the size of a file as text; ``-`` if it is gone by now."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return "-"
    return f"{found.st_mtime_ns}:{found.st_size}"


class Folder(NamedTuple):
    """A folder: its path, the same without links, how many levels are left below it, and what it holds."""

    path: str
    real: str
    left: int
    entries: Entries = {}


def runs_below(root: str) -> Iterator[Folder]:
    """Yield the run folders at or below one folder."""
    stack = [Folder(root, os.path.realpath(root), DEPTH)]
    while stack:
        path, real, left, _ = stack.pop()
        entries = entries_of(path)
        if is_run(entries):
            yield Folder(path, real, left, entries)
        elif left:
            inner = [e for n, e in entries.items() if not n.startswith(".") and is_folder(e)]
            stack += [Folder(e.path, os.path.join(real, e.name), left - 1) for e in reversed(inner)]


def is_run(entries: Entries) -> bool:
    """Return whether what a folder holds is a run: its config and, as a run writes it last, something else of a run."""
    held = CONFIG in entries and not is_folder(entries[CONFIG])
    return held and any(name in entries for name in (*FILES[1:], MODEL, CHECKPOINT))


def entries_of(folder: str | Path) -> Entries:
    """Return what a folder holds, in order of name; nothing if it is none, or none any more."""
    try:
        return {e.name: e for e in sorted(os.scandir(folder), key=lambda e: e.name)}
    except OSError:
        return {}


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, and no link to one; not if the system does not say."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
