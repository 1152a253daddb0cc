"""What the names of data sets say by themselves, before any data is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SYNTHETIC = re.compile(r"synthetic(?:\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\))?")
TEXT, LEAF, TABLE = (re.compile(rf"{kind}:(.*)", re.DOTALL) for kind in ("text", "leaf", "table"))
IN_FILES = (TEXT, LEAF, TABLE)  # names of data sets that say where their files are
DRAWN = (SYNTHETIC,)  # names of data sets that are drawn from a run's seed
PUBLISHED = re.compile("femnist|shakespeare|stackoverflow-tags")  # prepared by their publishers: forms/published
NATURAL = (SYNTHETIC, TEXT, LEAF, PUBLISHED)  # names of data sets that have clients of their own


def is_drawn(name: str) -> bool:
    """Return whether a data set is drawn from a run's seed, so that another seed is another data set."""
    return any(pattern.fullmatch(name) for pattern in DRAWN)


def has_natural_clients(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a data set has clients of its own.

    The speakers or chunks of a text, LEAF's users and synthetic data's clients are; those of a table if its options
    name the column that says who holds a row.
    """
    column = TABLE.fullmatch(name) is not None and options.get("client") is not None
    return column or any(pattern.fullmatch(name) for pattern in NATURAL)


def files_of(name: str) -> Path | None:
    """Return where the files of a data set are, if its name says so.

    >>> files_of("text:plays/hamlet.txt"), files_of("digits")
    (PosixPath('plays/hamlet.txt'), None)
    """
    found = next((match for pattern in IN_FILES if (match := pattern.fullmatch(name))), None)
    return None if found is None else Path(found[1]).expanduser()
