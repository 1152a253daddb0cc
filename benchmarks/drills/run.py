"""Run the drills: ``python -m benchmarks.drills.run [--full] [--seed 0] [--only NAME ...]``.

Each module of this folder is run in a process of its own. Prints a table, and exits with 1 if a case did not hold. With
``--out FOLDER`` the outcome of each drill is kept there, with its date, commit and machine; of the full drills in
results/drills the table of docs/reliability.md is made (``benchmarks/documents/tables.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.checks.commits import circumstances, git
from benchmarks.drills.parts.outcome import Outcome, wrong

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]


def modules() -> list[str]:
    """Return the names of the drills: the modules that define one."""
    return sorted(p.stem for p in HERE.glob("*.py") if "\ndef drill(" in p.read_text())


def commit() -> str:
    """Return what is drilled: the checkout's commit, or what a copy of one was told it is."""
    return os.environ.get("FEDSMOO_COMMIT") or git("rev-parse", "HEAD")


def run_module(name: str, full: bool, seed: int, out: Path | None) -> tuple[float, bool]:
    """Run a drill in a process of its own, and keep what it finds as it comes; returns its seconds, and if all held.

    That it fell over is a failure of it.
    """
    words = [
        sys.executable,
        "-m",
        "benchmarks.drills.run",
        "--inside",
        name,
        "--seed",
        str(seed),
        *(["--full"] if full else []),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
    about = {**circumstances(), "cores": os.cpu_count(), "commit": commit(), "full": full, "seed": seed}
    began, outcomes = time.monotonic(), list[Outcome]()

    def found(outcome: Outcome) -> None:
        outcomes.append(outcome)
        show(outcome)
        if out is not None:
            keep({**outcome, **about}, out / f"{name}.json")

    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            found(json.loads(line))
    if process.returncode:
        line = f"the drill {name} ended with {process.returncode}"
        found(Outcome(drill=name, tried=1, held=0, failures=[line]))
    return time.monotonic() - began, all(o["tried"] == o["held"] for o in outcomes)


def inside(name: str, full: bool, seed: int) -> Iterator[Outcome]:
    """Run a drill in this process."""
    for outcome in import_module(f"benchmarks.drills.{name}").drill(full, seed):
        if line := wrong(outcome):
            raise SystemExit(line)
        yield outcome


def show(outcome: Outcome) -> None:
    """Print an outcome as a row of the table, and what did not hold."""
    lines = [f"{outcome['drill']:66} {outcome['tried']:>7,} tried {outcome['held']:>7,} held"]
    print("\n".join([*lines, *(f"  DID NOT HOLD: {line}" for line in outcome["failures"])]), flush=True)


def keep(entry: dict[str, Any], path: Path) -> None:
    """Add an outcome, with when and of what, to a file of outcomes; one of the same name is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text())["outcomes"] if path.exists() else []
    others = [e for e in before if e["drill"] != entry["drill"]]
    path.write_text(json.dumps({"module": path.stem, "outcomes": [*others, entry]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every case, not a sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=modules(), default=modules(), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="drills at a time")
    parser.add_argument("--out", type=Path, help="folder to keep the outcomes in")
    parser.add_argument("--inside", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        for outcome in inside(given.inside, given.full, given.seed):
            print(json.dumps(outcome), flush=True)
        return
    held = True
    with ThreadPoolExecutor(given.jobs) as pool:
        done = pool.map(lambda name: run_module(name, given.full, given.seed, given.out), given.only)
        for name, (seconds, whole) in zip(given.only, done, strict=True):
            print(f"{name} took {seconds:.0f} s", flush=True)
            held = held and whole
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
