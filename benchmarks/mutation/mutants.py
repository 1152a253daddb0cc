"""Would the tests notice? Mutates the sources, one small change at a time, and asks the tests that run the place.

    PYTHONPATH=src python3 -m benchmarks.mutation.mutants --workers 14 --out results/mutants.json

Every mutant is a child process, forked from one that has imported the slow packages, with its own copy of the
repository. First all tests run once, unmutated, to see which functions each runs and how long it takes; that map is
kept beside the outcome (``--map``), and only files of tests that changed are run again. A mutant is killed by a failing
test, by a crash or by running far longer than its tests should. Mutants that the outcome has already are not run again;
``--only file:line`` and ``--again survived`` do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from benchmarks.mutation import related, warm
from benchmarks.mutation.draw import ROOMS, Mutant, drawn, mutants

ROOT = Path(__file__).resolve().parents[2]
BEGAN = time.monotonic()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results/mutants.json", help="the outcome, read and written")
    parser.add_argument("--map", type=Path, help="which tests run what; default: beside the outcome, .map.json")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--rooms", default=",".join(ROOMS), help="rooms to draw from, with commas between them")
    parser.add_argument("--since", metavar="COMMIT", help="draw from lines that this commit did not have")
    parser.add_argument("--only", action="append", default=[], metavar="FILE:LINE", help="these of the draw, again")
    parser.add_argument("--every", metavar="FILE", help="every mutation of this file instead of a draw")
    parser.add_argument("--again", choices=["survived"], help="run survivors of the outcome again")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th mutant from the I-th on")
    parser.add_argument("--minutes", type=float, default=1e9, help="end after so many minutes, the map counted in")
    parser.add_argument("--budget", type=float, default=150, help="seconds of tests per mutant, as they ran unmutated")
    parser.add_argument("--tests", action="append", default=[], help="ask only tests whose path begins so")
    parser.add_argument("--controls", type=int, default=5, help="copies without a mutation, which must survive")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--commit", help="of the sources, where git cannot say")
    return parser.parse_args()


def asked(options: argparse.Namespace, known: dict[str, Any]) -> list[Mutant]:
    """The mutants of this call, in the order of the draw."""
    every = [m for m in mutants(ROOT) if m.file.endswith(options.every)] if options.every else []
    all_ = every or draw(options)
    if options.only:
        return [m for m in all_ if any(f"{m.file}:{m.line}".endswith(o) for o in options.only)]
    if options.again:
        return [m for m in all_ if m.id in known and known[m.id]["killed_by"] is None]
    i, n = map(int, options.shard.split("/"))
    return [m for m in all_[i::n] if m.id not in known]


def draw(options: argparse.Namespace) -> list[Mutant]:
    """What the options draw."""
    return drawn(ROOT, options.seed, options.count, tuple(options.rooms.split(",")), options.since)


def control(i: int, mutant: Mutant) -> Mutant:
    """No mutation, at the place of one."""
    return Mutant(f"{i:012x}", mutant.file, mutant.line, mutant.function, "control", mutant.before, "", 0, 0, "")


def commit(options: argparse.Namespace) -> str:
    """The commit of the sources, marked where they differ from it; else a hash of their text."""
    if options.commit:
        return options.commit
    try:
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        text = b"".join(p.read_bytes() for p in sorted((ROOT / "src").rglob("*.py")))
        return f"sources {hashlib.sha256(text).hexdigest()[:12]}"


class Outcome:
    """The file of outcomes: mutants of the present draw, killed or not."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path = options.out
        before = json.loads(self.path.read_text()) if self.path.is_file() else {}
        self.mutants: dict[str, dict[str, Any]] = {m["id"]: m for m in before.get("mutants", [])}
        self.facts = {"commit": commit(options), "seed": options.seed, "python": platform.python_version()}
        self.facts |= {"rooms": options.rooms.split(",")} | ({"since": options.since} if options.since else {})
        self.facts |= {
            "machine": platform.processor() or "cpu",
            "cores": os.cpu_count(),
            "workers": options.workers,
            "controls": before.get("controls", []),
        }
        self.whole = not options.every

    def add(self, mutant: Mutant, found: dict[str, Any]) -> None:
        place = {"id": mutant.id, "file": mutant.file, "line": mutant.line, "function": mutant.function}
        place |= {"operator": mutant.operator, "before": mutant.before, "after": mutant.after}
        if mutant.operator == "control":
            self.facts["controls"].append(place | found)
        else:
            why = self.mutants.get(mutant.id, {}).get("why")
            self.mutants[mutant.id] = place | found | ({"why": why} if why and found["killed_by"] is None else {})

    def write(self, draw: list[Mutant] | None = None) -> str:
        """Write the file and say how it stands; with a draw, forget mutants that are no longer in it."""
        if draw is not None and self.whole:
            lines = {m.id: m.line for m in draw}
            self.mutants = {i: m | {"line": lines[i]} for i, m in self.mutants.items() if i in lines}
        ordered = sorted(self.mutants.values(), key=lambda m: (m["file"], m["line"]))
        survived = [m for m in ordered if m["killed_by"] is None]
        facts = self.facts | {"count": len(ordered), "killed": len(ordered) - len(survived), "survived": len(survived)}
        rows = ",\n".join(f"  {json.dumps(m, ensure_ascii=False)}" for m in ordered)
        head = json.dumps(facts, ensure_ascii=False, indent=1)[:-2]
        fresh = self.path.with_suffix(".part")
        fresh.write_text(f'{head},\n "mutants": [\n{rows}\n ]\n}}\n', encoding="utf-8")
        fresh.replace(self.path)
        return f"{len(ordered)} mutants, {len(survived)} survived"


def conduct(todo: list[Mutant], tests: dict[str, Any], options: argparse.Namespace, outcome: Outcome, at: Path) -> None:
    """Run the mutants, as many at a time as there are workers."""
    master = at / "repository"  # which nobody edits meanwhile
    free = [at / str(i) / "repository" for i in range(options.workers)]
    for place in free:
        warm.copy_tree(master, place)
    running: list[warm.Child] = []
    waiting = todo[::-1]
    try:
        while (running or waiting) and time.monotonic() < BEGAN + 60 * options.minutes:
            while waiting and free:
                mutant = waiting.pop()
                mine = related.tests_for(tests, mutant.file, mutant.function, options.budget)
                if not mine:
                    outcome.add(mutant, {"killed_by": None, "seconds": 0.0, "tests": 0})
                    continue
                limit = 90 + 3 * related.seconds(tests, mine)
                running.append(warm.start(mutant, master, free.pop(), mine, limit))
            time.sleep(0.05)
            for child in list(running):
                found = warm.ended(child, master)
                if found is not None:
                    running.remove(child)
                    free.append(child.place)
                    outcome.add(child.mutant, found)
                    print(line(child.mutant, found), flush=True)
                    outcome.write()
    finally:
        for child in running:
            warm.end(child)
    if running or waiting:
        print(f"{len(running) + len(waiting)} mutants not run: the time is over; the same command goes on with them")


def line(m: Mutant, found: dict[str, Any]) -> str:
    """What became of a mutant, for people."""
    return f"{found['seconds']:6.1f} s  {m.file[12:]}:{m.line} {m.operator}: {found['killed_by'] or 'SURVIVED'}"


def main() -> None:
    options = arguments()
    outcome = Outcome(options)
    todo = asked(options, outcome.mutants)
    if options.list:
        for m in todo:
            print(f"{m.file}:{m.line} {m.function} {m.operator}\n  - {m.before}\n  + {m.after}")
        return
    if not todo:
        sys.exit("nothing to run: the outcome has all of these mutants")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside; the same command goes on"))
    path = options.map or options.out.with_suffix(".map.json")
    at = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        master = warm.copy_tree(ROOT, at / "repository")
        before = json.loads(path.read_text()) if path.is_file() else {}
        tests = related.update(ROOT, master, before, options.workers, options.tests, path.with_suffix(".log"))
        path.write_text(json.dumps(tests if not options.tests else before | tests))
        warm.import_heavy()
        controls = [control(i + 1, m) for i, m in enumerate(todo[:: max(1, len(todo) // max(1, options.controls))])]
        conduct([*controls[: options.controls], *todo], tests, options, outcome, at)
    finally:
        shutil.rmtree(at, ignore_errors=True)
    print(outcome.write(None if options.every else draw(options)))


if __name__ == "__main__":
    main()
