"""What the names of data sets say by themselves, before any data is loaded."""

from __future__ import annotations

import re

SYNTHETIC = re.compile(r"synthetic(?:\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\))?")
TEXT = re.compile(r"text:(.*)", re.DOTALL)
DRAWN = (SYNTHETIC,)  # names of data sets that are drawn from a run's seed
NATURAL = (SYNTHETIC, TEXT)  # names of data sets that have clients of their own


def is_drawn(name: str) -> bool:
    """Return whether a data set is drawn from a run's seed, so that another seed is another data set."""
    return any(pattern.fullmatch(name) for pattern in DRAWN)


def has_natural_clients(name: str) -> bool:
    """Return whether a data set has clients of its own: the speakers or chunks of a text, those of synthetic data."""
    return any(pattern.fullmatch(name) for pattern in NATURAL)
