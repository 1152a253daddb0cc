"""Notice a rank that is stopped or cut off: it breaks no connection, and the others would wait for it for ever.

Every rank beats in the store where the ranks met, in a thread of its own, however long its round takes; and listens to
the others. Who is not heard for ``FEDSMOO_RANK_TIMEOUT`` seconds is named, and this process ends: no Python code runs
while it waits in a collective call. The run goes on from its last checkpoint, with any number of ranks.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch.distributed import Store

from fedsmoo.core import FedsmooError

VARIABLE, DEFAULT = "FEDSMOO_RANK_TIMEOUT", 90.0
AGAIN = (
    "The rounds before are kept: start the job again with fedsmoo resume and the run folder, with any number of ranks"
)
LOST = 2  # the exit status


def patience() -> float:
    """Return the seconds after which a silent rank is lost: the environment's ``FEDSMOO_RANK_TIMEOUT``, or 90."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else DEFAULT
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e7:
        raise FedsmooError(f"the environment variable {VARIABLE} is {text!r}, but must be a number of seconds above 0")
    return seconds


def end(message: str) -> None:
    """Say why this process ends, and end it."""
    sys.stderr.write(f"fedsmoo: {message}\n")
    sys.stderr.flush()
    os._exit(LOST)


class Watch:
    """Beats for this rank and listens to the others, in two threads; ``lost`` is called once when one is silent.

    Args:
        rank: this one.
        world: how many there are.
        store: where they meet; nobody else may use this connection to it.
        seconds: of silence after which a rank is lost.
        lost: called with what a person should know.
    """

    def __init__(self, rank: int, world: int, store: Store, seconds: float, lost: Callable[[str], None] = end) -> None:
        self.rank, self.world, self.store, self.seconds, self.lost = rank, world, store, seconds, lost
        self.pause = min(1.0, seconds / 5)
        self.who = f"rank {rank} on {socket.gethostname()}, process {os.getpid()}"
        self.state, self.count = "here", 0
        self.keys = [f"fedsmoo/beat/{r}" for r in range(world)]
        now = time.monotonic()
        self.heard = dict.fromkeys(range(world), now)  # when each beat was last another one
        self.said: dict[int, list[str]] = {}  # what each rank said last: a count, its state, and who it is
        self.closed = threading.Event()
        self.threads = [threading.Thread(target=t, daemon=True) for t in (self.exchange, self.judge)]

    def start(self) -> None:
        """Beat once, so that the others know who this is, and go on in the background."""
        self.beat()
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """Say that this rank leaves, which is no silence, and stop."""
        self.state = "left" if self.state == "here" else self.state
        self.closed.set()
        self.threads[0].join(self.pause)

    def beat(self) -> None:
        self.count += 1
        self.store.set(self.keys[self.rank], f"{self.count}\n{self.state}\n{self.who}")

    def exchange(self) -> None:
        """Beat, and hear the others' beats. Whether the store answers shows in what was heard."""
        while not self.closed.wait(self.pause):
            with suppress(RuntimeError, ValueError):
                self.beat()
                there = [r for r in range(self.world) if r in self.said or self.store.check([self.keys[r]])]
                for r, value in zip(there, self.store.multi_get([self.keys[r] for r in there]), strict=True):
                    self.hear(r, value.decode("utf-8", "replace").split("\n"))
        with suppress(RuntimeError, ValueError):
            self.beat()

    def hear(self, rank: int, said: list[str]) -> None:
        if said != self.said.get(rank):
            self.said[rank], self.heard[rank] = said, time.monotonic()

    def judge(self) -> None:
        """Call ``lost`` once somebody was silent for too long; after a stop of this process itself, wait again."""
        before = time.monotonic()
        while not self.closed.wait(self.pause):
            now = time.monotonic()
            if now - before > self.seconds / 2:
                self.heard = dict.fromkeys(self.heard, now)
            before = now
            if silent := [r for r, state in self.silent(self.seconds).items() if state == "here"]:
                self.lost(f"{self.named(silent)} for {self.seconds:g} s: stopped, or cut off. {AGAIN}")
                return

    def silent(self, seconds: float) -> dict[int, str]:
        """Return who was not heard for so long, and what state it was in."""
        now = time.monotonic()
        late = [r for r, at in list(self.heard.items()) if now - at > seconds]
        return {r: self.said[r][1] if r in self.said else "here" for r in late}

    def named(self, silent: list[int]) -> str:
        """Say who is not heard; if even this rank does not hear itself, it is the place where all meet."""
        if self.rank in silent:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            return f"rank {self.rank} of {self.world}: the place where ranks meet, {where}, was not heard"
        names = [self.said[r][2] if r in self.said else f"rank {r}" for r in silent]
        return f"rank {self.rank} of {self.world}: nothing was heard of {'; '.join(names)}"

    def who_broke(self) -> str:
        """Return who ended, once a connection broke: who beats no more, other than those that noticed it, too."""
        self.state = "noticed"
        for _ in range(4):
            time.sleep(self.pause)
        late = self.silent(3 * self.pause).items()
        gone = [r for r, state in late if r != self.rank and r in self.said and state != "noticed"]
        return "; ".join(self.said[r][2] for r in gone)
