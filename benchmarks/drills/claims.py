"""Put odd claims into a run's folder, of dead processes, other machines and nobody: the run is carried out.

A claim that names nobody may hold others off for two seconds (``lease.GRACE``), for fedsmoo of before wrote it in two
steps; here its file is older than that. The only claims that hold are those of a process that lives, and of another
machine that was heard of lately.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.drills.parts.outcome import Outcome, judged
from benchmarks.drills.parts.programs import RUN, Program, Truth, carried_out, difference, warm
from fedsmoo.core import FedsmooError
from fedsmoo.runs.storage import lease

ODD: list[Any] = [0, -1, 2**31, 2**63, 2**200, 1e300, "12", "x", "", None, True, [1], {}, float("nan"), -0.5]
FIELDS = ("pid", "host", "boot", "space", "born", "token", "epoch")
TEXTS = ["", "{", "[]", "null", "7", "\udc80", "[" * 50_000, " " * 70_000, '{"token": "x"}', "\0" * 300]
Make = Callable[[Path], Any]


def written(text: str, seconds: float) -> Make:
    """Return what writes a claim that was last touched so many seconds ago."""

    def make(path: Path) -> None:
        path.write_text(text, errors="surrogateescape")
        os.utime(path, (time.time() - seconds, time.time() - seconds))

    return make


def aged(inner: Make) -> Make:
    """Return what makes a claim that is no file, older than one that its owner may still be writing."""

    def make(path: Path) -> None:
        inner(path)
        os.utime(path, (time.time() - 10, time.time() - 10), follow_symlinks=False)

    return make


def free() -> Iterator[tuple[str, Make]]:
    """Yield claims that nobody holds, by name."""
    mine, long = {**lease.me(), "token": "t", "epoch": 3}, lease.SILENCE + 60
    for field in FIELDS:
        for odd in ODD:
            yield f"{field} is {odd!r}", written(json.dumps({**mine, "pid": 2**22 + 7, field: odd}), long)
        yield f"no {field}", written(json.dumps({k: v for k, v in mine.items() if k != field} | {"born": "1"}), long)
    for text in [*TEXTS, *(json.dumps(mine)[:n] for n in range(0, 120, 10))]:
        for seconds in (lease.GRACE + 1, long, -1e6):
            yield f"{text[:40]!r}, {seconds:.0f} s ago", written(text, seconds)
    yield "a process that has ended", written(json.dumps({**mine, "pid": 2**22 + 7}), 1)
    yield "this process's number, of an earlier process", written(json.dumps({**mine, "born": "1"}), 1)
    yield "an earlier boot of this machine", written(json.dumps({**mine, "boot": "earlier"}), 60)
    yield "a pipe", aged(os.mkfifo)
    yield "a link to a device", aged(lambda path: path.symlink_to("/dev/zero"))
    yield "a link to nothing", aged(lambda path: path.symlink_to("nothing"))


def held() -> Iterator[tuple[str, Make]]:
    """Yield claims that somebody holds, by name."""
    mine, elsewhere = {**lease.me(), "token": "t", "epoch": 3}, {"host": socket.gethostname() + "-other"}
    yield "a process that lives", written(json.dumps(mine), 1000)
    yield (
        "its parent",
        written(json.dumps({**mine, "pid": os.getppid(), "born": lease.process_start(os.getppid())}), 1000),
    )
    for seconds in (0, 30, lease.SILENCE / 2, -lease.SKEW / 2):
        yield f"another machine, {seconds:.0f} s ago", written(json.dumps({**mine, **elsewhere}), seconds)
    yield "another machine of this name, just now", written(json.dumps({**mine, "boot": "its own"}), 1)
    yield "a container of this machine, just now", written(json.dumps({**mine, "space": "its own"}), 1)


def try_free(name: str, make: Make, program: Program, truth: Truth, root: Path) -> str:
    """Carry the program out where an odd claim lies; empty if that held."""
    (root / "run").mkdir(parents=True)
    make(root / "run" / lease.LEASE)
    why = difference(program, root, truth)
    return f"a claim that nobody holds, {name}: {why}" if why else ""


def try_held(name: str, make: Make, program: Program, root: Path) -> str:
    """Carry the program out where somebody is at work; empty if it is refused in one line."""
    (root / "run").mkdir(parents=True)
    make(root / "run" / lease.LEASE)
    before = (root / "run" / lease.LEASE).read_bytes()
    try:
        program.go(root)
    except FedsmooError as e:
        same = (root / "run" / lease.LEASE).read_bytes() == before
        return "" if same and "another process is at work" in str(e) else f"{name}: {e}"
    return f"a claim that somebody holds, {name}: it was taken"


def drill(full: bool, seed: int) -> Iterator[Outcome]:
    """Try odd claims, those that nobody holds and those that somebody does."""
    os.fsync = os.fstat  # nothing here loses what was written
    lease.boot_time = lambda: time.time() - 30
    lease.BEAT, lease.GRACE = 0.01, min(lease.GRACE, 0.5)  # how long a claim from the future is watched
    warm()
    claims = list(free())
    with TemporaryDirectory() as folder:
        root, truth = Path(folder), carried_out(RUN, Path(folder) / "whole")
        drawn = claims if full else random.Random(seed).sample(claims, 40)
        lines = (try_free(name, make, RUN, truth, root / f"free{k}") for k, (name, make) in enumerate(drawn))
        yield judged("claims that nobody holds", lines)
        lines = (try_held(name, make, RUN, root / f"held{k}") for k, (name, make) in enumerate(held()))
        yield judged("claims that somebody holds", lines)
