"""The paper: its experiments as TOML, its printed numbers, and its tables with ours beside them.

``fedsmoo.paper.table(...)`` reproduces a table, ``fedsmoo.paper.update(...)`` rewrites those marked in documents.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsmoo.paper.document import update
    from fedsmoo.paper.reproduce import PaperTable, table

__all__ = ["PaperTable", "table", "update"]
_HOME = {"PaperTable": "reproduce", "table": "reproduce", "update": "document"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: PyTorch takes seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedsmoo.paper' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"fedsmoo.paper.{_HOME[name]}"), name)
    return value
