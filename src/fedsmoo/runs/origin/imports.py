"""Which further files of a user's own the files that settings name import: edited, they give other numbers, too."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from fedsmoo.data.fingerprint import SHORT
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import user_file_paths
from fedsmoo.runs.origin.hashes import content_hash

INSTALLED = ("site-packages", "dist-packages")


def code_of(config: Config) -> list[Path]:
    """Return the files of code that a config names."""
    return [p.absolute() for p in user_file_paths(config).values() if p is not None and p.suffix == ".py"]


def imported_facts(config: Config) -> dict[str, dict[str, str]]:
    """Return what a run records of files that its own files of code import from their folder or below: their hashes.

    Only what this process has imported counts: the run has been made by now. Nothing is imported to find out.
    """
    named = code_of(config)
    found: dict[str, str] = {}
    for path in named:
        for other in imported_by(path):
            value = None if other in named else content_hash(other)
            if value is not None:
                found[other.relative_to(path.parent).as_posix()] = value[:SHORT]
    return {"imported": found} if found else {}


def edited_imports(config: Config, before: Mapping[str, Any]) -> list[str]:
    """Return the files, imported by a run's own, that are not what its records say; none if they say nothing."""
    held = before.get("imported")
    places = [path.parent for path in code_of(config)]
    out = []
    for name, value in held.items() if isinstance(held, dict) else ():
        inside = ".." not in Path(name).parts and not Path(name).is_absolute()  # anybody may have made the records
        now = [content_hash(place / name) for place in places if inside and os.path.isfile(place / name)]
        out += [] if value in [each[:SHORT] for each in now if each is not None] else [str(name)]
    return out


def imported_by(path: Path) -> list[Path]:
    """Return the files below a file's folder that it imports, or that these do in turn."""
    found: dict[Path, None] = {}
    todo: list[tuple[Path, str]] = [(path, "")]
    while todo:
        for name in imported_names(*todo.pop()):
            module = sys.modules.get(name)
            file = getattr(module, "__file__", None)
            there = Path(file).absolute() if isinstance(file, str) else path
            if there in (path, *found) or not there.is_relative_to(path.parent) or {*there.parts} & {*INSTALLED}:
                continue
            found[there] = None
            todo.append((there, getattr(module, "__package__", None) or ""))
    return list(found)


def imported_names(path: Path, package: str) -> Iterator[str]:
    """Yield the names of modules that a file of Python may import, anywhere in it."""
    tree = ast.Module([], [])
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                parts = each.name.split(".")
                yield from (".".join(parts[: k + 1]) for k in range(len(parts)))
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # of a file that is in no package
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield base
                yield from (f"{base}.{each.name}" for each in node.names)
