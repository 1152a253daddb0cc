"""Power cuts at many moments of a run: ``python benchmarks/power_cuts.py --cuts 50``.

A program is carried out once, and at moments spread over its file operations an image is made of the worst that a disk
may hold then (``tests/runs/storage/power.py``). The same program is then given each image: it has to come to the same
models, and what had finished has to stay finished. Prints a line of JSON for each program: how many cuts
there were, how many held.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runs" / "storage"))
from power import Disk, recorded, restore

from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.lease import LEASE
from fedsmoo.runs.storage.names import MODEL, SUMMARY
from fedsmoo.runs.storage.verify import verify
from fedsmoo.sweeps.queue import open_run

TINY = Config(
    algorithm="fedsmoo", model="softmax", clients=8, cohort=3, rounds=4, local_steps=1, batch_size=8, partition="iid",
    engine="serial", device="cpu",
)  # fmt: skip
Truth = dict[str, Any]


def one_run(root: Path) -> None:
    """Carry out a run, or go on with it."""
    if not (root / "run" / SUMMARY).exists():
        open_run(root / "run", TINY, {}).go(save_every=1)


def outcome(root: Path) -> Truth:
    """Return the models, by path."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob(MODEL)}


def drill(program: Callable[[Path], None], cuts: int, seed: int, folder: Path) -> dict[str, Any]:
    """Cut the power of a program at many moments; returns how many there were, how many held, and why not."""
    counts = Disk(new(folder / "counted"), seed, lambda cut: False)
    with recorded(counts):
        program(counts.root)
    truth, every = outcome(counts.root), max(counts.cuts // cuts, 1)
    disk = Disk(new(folder / "cut"), seed, lambda cut: cut % every == seed % every)
    with recorded(disk):
        program(disk.root)
        disk.images.append(dict(disk.left(os.stat(disk.root).st_ino, "")))  # once it has ended
    wrong = []
    for number, image in enumerate(disk.images):
        unclaimed = {name: content for name, content in image.items() if Path(name).name != LEASE}  # we are alive
        root = restore(unclaimed, folder / f"image{number}")
        done = {p: p.read_bytes() for p in root.rglob(SUMMARY)}
        if why := unlike(root, program, truth, done):
            wrong.append(f"cut {number}: {why}")
    tried = len(disk.images)
    return {"program": program.__name__, "operations": disk.cuts // 2, "cuts": tried, "held": tried - len(wrong)} | (
        {"wrong": wrong} if wrong else {}
    )


def unlike(root: Path, program: Callable[[Path], None], truth: Truth, done: dict[Path, bytes]) -> str:
    """Carry out a program on an image; returns in what its outcome is unlike the one without a cut."""
    try:
        program(root)
        if outcome(root) != truth:
            return "another outcome"
        damaged = [line for p in root.rglob(SUMMARY) for line in verify(p.parent).damaged]
    except FedsmooError as e:
        return str(e)
    lost = [str(p) for p, content in done.items() if p.read_bytes() != content]
    return "; ".join(damaged + [f"{p} had finished" for p in lost])


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=50, help="of each program")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    held = True
    for program in (one_run,):
        with tempfile.TemporaryDirectory() as folder:
            found = drill(program, given.cuts, given.seed, Path(folder))
        print(json.dumps(found), flush=True)
        held = held and found["cuts"] == found["held"]
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
