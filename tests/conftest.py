"""Hands the files that take longest out first: a file goes to one process as a whole (see the Makefile)."""

from __future__ import annotations

import pytest

# In the order of what they take; all others are short, and fill up what is left at the end.
LONGEST = (
    "distributed/test_ranks.py",
    "deploy/test_simulation.py",
    "checkpoint/test_kill.py",
    "compiler/test_passes.py",
    "report/test_page.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get("/".join(item.path.parts[-2:]), len(rank)))
