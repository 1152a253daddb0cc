"""A worker paused at one of its file operations, while another takes its run over and finishes it.

Both run in this process: A in a thread of its own that waits before its n-th operation on a file of the run, B in the
thread of the caller. That A's machine has been silent is told by an aged claim of another host.
"""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage import checkpoint, lease
from fedsmoo.runs.storage.names import METRICS, MODEL

CONFIG = Config(
    algorithm="scaffold", model="softmax", clients=4, cohort=2, rounds=4, local_steps=1, batch_size=8, partition="iid",
    engine="serial", device="cpu",
)  # fmt: skip
TIMES = ("seconds_train", "seconds_eval")
LONG = 60.0  # seconds after which a thread counts as stuck


@dataclass(frozen=True)
class Outcome:
    """What a pause led to."""

    at: str  # the operation before which A waited; empty if A came to its end before
    taken: bool  # whether B took the run over meanwhile
    said: str  # how A ended: the line of its error
    harm: list[str]  # what is not as it should be


class Pauses:
    """Counts the operations on files of a run that one thread does, and waits before one of them."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.left = str(folder.resolve()), at
        self.name, self.there, self.go_on = "", threading.Event(), threading.Event()
        self.owner = False  # whether there was a claim when it waited
        self.thread: threading.Thread | None = None

    def __call__(self, what: str, path: Any) -> None:
        if threading.current_thread() is not self.thread or not str(path).startswith(self.folder):
            return
        self.left -= 1
        if self.left == 0:
            self.name = f"{what} {os.path.relpath(str(path), self.folder)}"
            self.owner = (Path(self.folder) / lease.LEASE).exists()
            self.there.set()
            assert self.go_on.wait(LONG)

    def before(self, what: str, inner: Any) -> Any:
        """Return a function that may wait before it does its work on the file that is its first argument."""

        @functools.wraps(inner)
        def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
            self(what, path)
            return inner(path, *args, **kwargs)

        return wrapped

    def opening(self, inner: Any) -> Any:
        """Return ``open`` that may wait before and after it opens a file for writing."""

        @functools.wraps(inner)
        def wrapped(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wax+"):
                return inner(path, mode, *args, **kwargs)
            self(f"open({mode})", path)
            file = inner(path, mode, *args, **kwargs)
            self("write", path)
            return file

        return wrapped

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch the functions by which fedsmoo writes, renames and removes files."""
        with ExitStack() as held:
            for name in ("replace", "link", "unlink", "rename", "mkdir", "rmdir", "utime"):
                held.enter_context(patch.object(os, name, self.before(name, getattr(os, name))))
            for name in ("unlink", "mkdir", "rmdir"):
                held.enter_context(patch.object(Path, name, self.before(name, getattr(Path, name))))
            opened = self.opening(io.open)
            for owner in (io, builtins):
                held.enter_context(patch.object(owner, "open", opened))
            save = checkpoint.save_file
            saved = lambda tensors, path, metadata=None: (self("save", path), save(tensors, path, metadata))[1]  # noqa: E731
            held.enter_context(patch.object(checkpoint, "save_file", saved))
            yield


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run without their seconds."""
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def content(folder: Path) -> dict[str, bytes]:
    """Return every file of a run but those by which it is leased."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in (".lock", ".claim"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def silence(folder: Path) -> None:
    """Make a claim, if there is one, look like that of another machine that has not been heard of for long."""
    claim = folder / lease.LEASE
    if claim.exists():
        claim.write_text(json.dumps({**json.loads(claim.read_text()), "host": "elsewhere"}))
        os.utime(claim, (time.time() - 300, time.time() - 300))


def work(folder: Path, keep: bool) -> None:
    """Begin a run, or go on with it, and finish it; with its last checkpoints, or as a sweep would, without."""
    with lease.leased(folder) as held:
        begun = (folder / "config.toml").is_file()
        run = reopen(folder, lease=held) if begun else Run.begin(CONFIG, folder, lease=lambda path: held)
        run.go(save_every=1, keep=keep)


def pause(folder: Path, at: int, whole: Path, keep: bool = True) -> Outcome:
    """Pause A before its operation number ``at``, let B finish the run, let A go on; ``whole`` was never paused."""
    pauses, said = Pauses(folder, at), list[str]()

    def first() -> None:
        try:
            work(folder, keep)
        except FedsmooError as e:
            said.append(str(e))
        except Exception as e:
            said.append(f"{type(e).__name__}: {e}")

    pauses.thread = threading.Thread(target=first)
    with pauses.installed(), patch.object(lease, "PATIENCE", 0.05):
        pauses.thread.start()
        while not pauses.there.wait(0.002) and pauses.thread.is_alive():
            pass
        silence(folder)
        taken, before = False, dict[str, bytes]()
        if pauses.name:
            taken, before = second(folder, keep)
        pauses.go_on.set()
        pauses.thread.join(LONG)
    return Outcome(pauses.name, taken, "".join(said), harm(folder, whole, before if taken else None, said, pauses))


def operations(folder: Path, keep: bool) -> int:
    """Carry out a run without a pause and return the number of its operations."""
    pauses = Pauses(folder, 0)
    pauses.thread = threading.current_thread()
    with pauses.installed():
        work(folder, keep)
    return -pauses.left


def second(folder: Path, keep: bool) -> tuple[bool, dict[str, bytes]]:
    """Take the run over and finish it, if it is free and unfinished; whether it was, and what its folder then held."""
    try:
        work(folder, keep)
    except FedsmooError as e:
        if "another process is at work" in str(e) or "has finished" in str(e):
            return False, {}
        raise
    return True, content(folder)


def harm(folder: Path, whole: Path, left: dict[str, bytes] | None, said: list[str], pauses: Pauses) -> list[str]:
    """Return what is wrong: A changed what B left, did not say that it was taken over, or the numbers are others."""
    found = []
    if pauses.thread is not None and pauses.thread.is_alive():
        return ["A is stuck"]
    if left is not None:
        now = content(folder)
        changed = sorted(n for n in {*left, *now} if left.get(n) != now.get(n) and not n.endswith(".part"))
        found += [f"A changed {n}" for n in changed]
    expected = "" if left is None else lease.TAKEN if pauses.owner else "has finished: there is nothing to resume"
    if expected not in "".join(said) or (said and not expected):
        found.append(f"A ended with: {said}")
    if (folder / MODEL).read_bytes() != (whole / MODEL).read_bytes():
        found.append("another model")
    if metrics(folder) != metrics(whole):
        found.append("other metrics")
    found += [f"{n} is left behind" for n in content(folder) if n.endswith(".part")]
    return found
