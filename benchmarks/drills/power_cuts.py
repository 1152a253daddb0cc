"""Cut the power at many moments of a program, and go on with the worst that the disk may then hold.

A program is carried out once, and at moments spread over its file operations an image is made of what a disk may hold
then: all that was flushed, and of the rest any part (``tests/runs/storage/power.py``). The same program is given each
image: it comes to the same end, and what had finished stays finished.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from runs.storage.power import Disk, recorded, restore

from benchmarks.drills.parts.outcome import Outcome, judged
from benchmarks.drills.parts.programs import PROGRAMS, Program, Truth, carried_out, difference, warm
from fedsmoo.runs.storage import lease

CUTS, SAMPLE = 200, 50  # of each program, at most
AGO = 30.0  # seconds since the power came back


def images_of(program: Program, cuts: int, seed: int, folder: Path) -> list[dict[str, bytes]]:
    """Carry a program out, and return what cuts at moments spread over it would leave; the last, once it has ended."""
    for name in ("counted", "cut"):
        (folder / name).mkdir()
        program.prepare(folder / name)
    counted = Disk(folder / "counted", seed, lambda cut: False)
    with recorded(counted):
        program.go(counted.root)
    every = max(counted.cuts // cuts, 1)
    disk = Disk(folder / "cut", seed, lambda cut: cut % every == seed % every)
    with recorded(disk):
        program.go(disk.root)
        disk.images.append(dict(disk.left(os.stat(disk.root).st_ino, "")))
    return disk.images


def started_anew(root: Path) -> None:
    """Make the claims in an image those of this machine before its power was cut."""
    for claim in root.rglob(lease.LEASE):
        with suppress(ValueError):
            claim.write_text(json.dumps({**json.loads(claim.read_bytes()), "boot": "before the power was cut"}))
        os.utime(claim, (time.time() - 2 * AGO, time.time() - 2 * AGO))


def cases(program: Program, cuts: int, seed: int, folder: Path) -> Iterator[str]:
    """Yield a line for each cut, which is empty if it held."""
    truth: Truth = carried_out(program, folder / "whole")
    images = images_of(program, cuts, seed, folder)
    for number, image in enumerate(images, 1):
        root = restore(image, folder / f"image{number}")
        started_anew(root)
        finished = number < len(images) or program.truth(root) == truth
        why = difference(program, root, truth) if finished else "it had ended, and is not complete"
        yield f"{program.name}, cut {number} of {len(images)}: {why}" if why else ""


def drill(full: bool, seed: int) -> Iterator[Outcome]:
    """Cut the power of each program."""
    lease.boot_time = lambda: time.time() - AGO
    warm()
    for program in PROGRAMS:
        with TemporaryDirectory() as folder:
            cuts = cases(program, CUTS if full else SAMPLE, seed, Path(folder).resolve())
            yield judged(f"{program.name}: power cut", cuts)
