"""Stop a program before each of its file operations, let another carry it out, and let the first go on.

The first is a process stopped by a signal. That its machine has been silent for long is told by an aged claim of
another host, so the second takes over. When the first wakes, it may change nothing that the second left, and has to end
with one line or none. It may go on to remove the checkpoints of a run that it had finished itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.drills.parts.children import FELL_OVER, ended, started
from benchmarks.drills.parts.faults import operations_of
from benchmarks.drills.parts.operations import Operations, stop_at
from benchmarks.drills.parts.outcome import Outcome, judged, sample
from benchmarks.drills.parts.programs import (
    EXPORT,
    RUN,
    RUN_WITHOUT_CHECKPOINTS,
    SWEEP,
    Program,
    Truth,
    carried_out,
    difference,
    warm,
)
from fedsmoo.core import FedsmooError
from fedsmoo.runs.storage import lease
from fedsmoo.runs.storage.fence import PART

SHARE = 0.25  # of the operations, in a sample
OWN = (lease.LEASE, lease.LOCK)  # of the lease itself
AGO = 300.0  # seconds for which the first is said to have been silent


def silence(root: Path) -> None:
    """Make claims look like those of another machine that has not been heard of for long."""
    for claim in root.rglob(lease.LEASE):
        claim.write_text(json.dumps({**json.loads(claim.read_text()), "host": "elsewhere"}))
        os.utime(claim, (time.time() - AGO, time.time() - AGO))


def content(root: Path) -> dict[str, bytes]:
    """Return every file but those by which folders are leased, those not written to their end, and the index."""
    files = (p for p in sorted(root.rglob("*")) if p.is_file() and p.name not in OWN)
    kept = (p for p in files if p.suffix != PART and not p.name.startswith(".index"))
    return {str(p.relative_to(root)): p.read_bytes() for p in kept}


def second(program: Program, root: Path) -> dict[str, bytes] | None:
    """Carry a program out beside one that is stopped; returns what it left, or none if it was told to wait."""
    try:
        program.go(root)
    except FedsmooError as e:
        if "another process is at work" in str(e):
            return None
        raise
    return content(root)


def try_one(program: Program, number: int, truth: Truth, root: Path) -> str:
    """Stop a program before one operation; empty if no harm came of it."""
    root.mkdir()
    program.prepare(root)
    said = root.with_name(root.name + ".said")

    def work() -> None:
        with Operations(root, stop_at(number)).installed():
            program.go(root)

    pid = started(work, said)
    if not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
        return "it was not stopped"
    silence(root)
    try:
        left = second(program, root)
        whole = left is not None and program.truth(root) == truth
    except Exception as e:
        return f"the second ended with {type(e).__name__}: {e}"
    finally:
        os.kill(pid, signal.SIGCONT)
        code = ended(pid)
    if code == FELL_OVER or code < 0:
        return f"the first fell over: {said.read_text() if said.exists() else code}"
    changed = changes(left, content(root), program.removes) if whole and left is not None else []
    return f"the first changed {', '.join(changed)}" if changed else difference(program, root, truth)


def changes(left: dict[str, bytes], now: dict[str, bytes], removes: str | None) -> list[str]:
    """Return the files that are not as the second left them, but for those in a folder that the first may remove."""
    other = [n for n in sorted({*left, *now}) if left.get(n) != now.get(n)]
    return [n for n in other if n in now or removes is None or f"/{removes}/" not in n]


def cases(program: Program, full: bool, seed: int, root: Path) -> Iterator[str]:
    """Yield a line for each operation, which is empty if it held."""
    names = operations_of(program, root / "counted")
    truth = carried_out(program, root / "whole")
    numbers = list(range(1, len(names) + 1))
    for number in numbers if full else sample(numbers, SHARE, seed):
        why = try_one(program, number, truth, root / str(number))
        yield f"{program.name}, stopped before operation {number}, {names[number - 1]}: {why}" if why else ""
        shutil.rmtree(root / str(number))


def drill(full: bool, seed: int) -> Iterator[Outcome]:
    """Stop each program before each of its operations."""
    os.fsync = os.fstat  # nothing here loses what was written
    lease.PATIENCE = 0.05  # seconds that the second waits for a lock that the first holds
    warm()
    for program in (RUN, RUN_WITHOUT_CHECKPOINTS, SWEEP, EXPORT):
        with TemporaryDirectory() as folder:
            yield judged(f"{program.name}: paused and taken over", cases(program, full, seed, Path(folder).resolve()))
