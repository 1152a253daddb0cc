"""Kill a program at each of its file operations, or let the operation fail, and go on: the end is the same.

A kill leaves half of what was being written. A full disk (ENOSPC) stays full until the program has ended; an error of
the disk (EIO) comes once. The program may end with one line, or without noticing; never with a traceback, and going on
afterwards it comes to the same end as if nothing had happened.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.drills.parts.children import FELL_OVER, SAID, ended, started
from benchmarks.drills.parts.operations import Act, Operations, fail_at, kill_at, refused_by
from benchmarks.drills.parts.outcome import Outcome, judged, sample
from benchmarks.drills.parts.programs import (
    EXPORT,
    FEDERATION,
    RUN,
    SWEEP,
    TABLES,
    Program,
    Truth,
    carried_out,
    difference,
    warm,
)

SHARE = 0.25  # of the operations, in a sample
KINDS = {"killed": 0, "full disk": errno.ENOSPC, "I/O error": errno.EIO}


def operations_of(program: Program, folder: Path) -> list[str]:
    """Return the names of a program's operations, carried out in a new folder."""
    folder.mkdir()
    program.prepare(folder)
    counted = Operations(folder)
    with counted.installed():
        program.go(folder)
    return counted.names


def disturbed(program: Program, act: Act, folder: Path) -> tuple[int, str]:
    """Carry a program out in a child that something happens to; returns how it ended, and what it said."""
    said = folder.with_name(folder.name + ".said")

    def work() -> None:
        with Operations(folder, act).installed():
            program.go(folder)

    code = ended(started(work, said))
    return code, said.read_text() if said.exists() else ""


def try_one(program: Program, kind: str, number: int, truth: Truth, folder: Path) -> str:
    """Disturb one operation and go on; empty if that held."""
    folder.mkdir()
    program.prepare(folder)
    error = KINDS[kind]
    code, said = disturbed(program, fail_at(number, error) if error else kill_at(number), folder)
    if code == FELL_OVER or (code < 0 and code != -signal.SIGKILL):
        return f"it fell over: {said or code}"
    if "\n" in said:
        return f"more than a line: {said!r}"
    why = (program.refused(folder) if code == SAID else "") or difference(program, folder, truth)
    return f"then {why}" if why else ""


def cases(program: Program, kind: str, full: bool, seed: int, root: Path) -> Iterator[str]:
    """Yield a line for each operation, which is empty if it held."""
    names = operations_of(program, root / "counted")
    truth = carried_out(program, root / "whole")
    numbers = [n for n, name in enumerate(names, 1) if not KINDS[kind] or refused_by(KINDS[kind], name)]
    for number in numbers if full else sample(numbers, SHARE, seed):
        folder = root / str(number)
        why = try_one(program, kind, number, truth, folder)
        yield f"{program.name}, {kind} at operation {number}, {names[number - 1]}: {why}" if why else ""
        shutil.rmtree(folder)


def disturbances(kind: str, full: bool, seed: int) -> Iterator[Outcome]:
    """Disturb each operation of each program in one way."""
    os.fsync = os.fstat  # nothing here loses what was written
    warm()
    for program in (RUN, SWEEP, EXPORT, TABLES, FEDERATION):
        with TemporaryDirectory() as folder:
            yield judged(f"{program.name}: {kind}", cases(program, kind, full, seed, Path(folder).resolve()))
