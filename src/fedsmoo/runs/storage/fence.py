"""Who may write into a run folder: within ``fenced_by(lease)`` what is renamed, appended or removed is the owner's.

A process that was paused may wake in the middle of writing and find that another took its run over. So a file is
written under a name of its owner's own (its epoch is in it), and gets its place under the folder's lock, once it is
certain that the owner is still the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path

PART = ".part"  # the end of the name of a file that is being written


class Fence:
    """Lets everything pass, for files that nobody else writes. A lease is one that asks who the owner is."""

    epoch: int | None = None  # counts the owners of a folder

    def held(self) -> AbstractContextManager[None]:
        """Keep others from becoming the owner meanwhile; raises ``TakenOver`` if somebody has."""
        return nullcontext()


_current: ContextVar[Fence] = ContextVar("fence", default=Fence())  # noqa: B039 (it has no state)


def fence() -> Fence:
    """Return the fence that holds here."""
    return _current.get()


@contextmanager
def fenced_by(fence: Fence | None) -> Iterator[None]:
    """Check all that is written into a run folder meanwhile; nothing, if ``None``."""
    token = _current.set(fence or Fence())
    try:
        yield
    finally:
        _current.reset(token)


def partial_name(path: Path) -> Path:
    """Return the name of a file while it is being written, which differs for every owner of its folder."""
    epoch = fence().epoch
    return path.with_name(path.name + ("" if epoch is None else f".{epoch}") + PART)
