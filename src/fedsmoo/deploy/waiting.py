"""Ask nodes and wait for what they answer, not longer than for those that have always answered.

Messages are fetched one by one: one that cannot be read costs its sender its place in the round, and nobody else's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message

from fedsmoo.core.untrusted import text
from fedsmoo.deploy.wire import Refusal

PAUSES = (0.1, 3.0)  # seconds between two looks: a tenth of what was waited already, within these
GRACE = 2.0  # who is not waited for has this many times as long as those who are


@dataclass(frozen=True)
class Question:
    """A message that was sent, to whom, and until when an answer may come."""

    message: Message
    node: int
    until: float


@dataclass
class Answers:
    """What came back, by node; who is in neither has not answered yet."""

    replies: list[Message] = field(default_factory=list)
    unreadable: dict[int, Refusal] = field(default_factory=dict)


class Exchange:
    """Sends messages over a grid and collects the answers, late ones too."""

    def __init__(
        self, grid: Any, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.grid, self.clock, self.sleep = grid, clock, sleep
        self.open: dict[str, Question] = {}  # by message id: not answered yet, also of rounds that are over
        self.late = Answers()  # to questions that somebody no longer waits for

    @property
    def busy(self) -> set[int]:
        """The nodes that have a question which they may still answer."""
        now = self.clock()
        self.open = {i: q for i, q in self.open.items() if now < q.until}
        return {q.node for q in self.open.values()}

    def ask(self, messages: Sequence[Message], waited_for: Collection[int], need: int, timeout: float) -> Answers:
        """Send messages and wait for the answers: for all of some nodes', else for ``need`` answers.

        Then nodes that are not waited for have as long again. Whatever comes after that is in ``late``.
        """
        began, found = self.clock(), Answers()
        ids = self.grid.push_messages(list(messages)) if messages else []
        mine = dict(zip(ids, messages, strict=True))
        for i, m in mine.items():
            if i:  # Flower gives none to a message that it did not take
                self.open[i] = Question(m, m.metadata.dst_node_id, began + timeout)
        settled: float | None = None
        while True:
            self.look(mine, found)
            left = {q.node for i, q in self.open.items() if i in mine}
            now = self.clock() - began
            if not left or now >= timeout:
                return found
            if not left & set(waited_for) and len(mine) - len(left) >= need:
                settled = now if settled is None else settled
                if now >= GRACE * settled:
                    return found
            self.sleep(min(max(now / 10, PAUSES[0]), PAUSES[1]))

    def look(self, mine: Collection[str] = (), found: Answers | None = None) -> None:
        """Fetch the answers that have come: to ``mine`` into ``found``, to earlier questions into ``late``."""
        for i, question in list(self.open.items()):
            into = found if found is not None and i in mine else self.late
            try:
                replies = list(self.grid.pull_messages([i]))
            except Exception as e:  # what a stranger wrote may break Flower's reading of it in any way
                if is_connection_error(e):
                    raise
                into.unreadable[question.node] = Refusal("unreadable bytes", text(f"{type(e).__name__}: {e}", 200))
                del self.open[i]
                continue
            if replies:
                into.replies += replies
                del self.open[i]


def is_connection_error(e: Exception) -> bool:
    """Return whether an error is of the connection to Flower's server, not of a message that it cannot hand out."""
    if isinstance(e, httpx.HTTPStatusError):
        return e.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR
    return isinstance(e, httpx.HTTPError)
