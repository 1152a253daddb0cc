"""What the names of data sets say by themselves, before any data is loaded."""

from __future__ import annotations

import re

SYNTHETIC = re.compile(r"synthetic(?:\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\))?")
TEXT = re.compile(r"text:(.*)", re.DOTALL)


def drawn(name: str) -> bool:
    """Return whether a data set is drawn from a run's seed, so that another seed is another data set."""
    return SYNTHETIC.fullmatch(name) is not None


def has_natural_clients(name: str) -> bool:
    """Return whether a data set has clients of its own: the speakers or chunks of a text, those of synthetic data."""
    return TEXT.fullmatch(name) is not None or drawn(name)
