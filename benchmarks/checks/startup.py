"""CPU time until ``fedsmoo`` says what needs no PyTorch, against ``python -c "import torch"``, in one run.

    python -m benchmarks.checks.startup               # every command's --help, five times: about a minute
    python -m benchmarks.checks.startup --only sweep --repeat 9
    python -m benchmarks.checks.startup --keep        # adds the outcome to results/startup.json

Measured are ``--version``, ``--help`` of the program and of every command, and the shell's completion, of this checkout
as it is. The commands are asked for through completion itself, so that a new one is measured, too. Time is what the
child's processor spent (user and system), so other programs hardly matter; all are taken in turns, and medians are
compared. Each should take at most a third of importing PyTorch; the exit status is 1 if one takes more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.checks.commits import ROOT, add, circumstances, environment, full_name, git, refuse_other_package

OUTCOMES = ROOT / "results" / "startup.json"
LIMIT = 1 / 3
TORCH = "import torch"
# What the installed program does; `python -m fedsmoo` would complete under another name.
START = "import sys; sys.argv[0] = 'fedsmoo'; from fedsmoo.__main__ import main; main()"
Case = tuple[list[str], dict[str, str]]  # the words behind `python`, and what is added to the environment


def completion(words: str) -> Case:
    """Return how bash asks for what may follow some words: ``fedsmoo data `` has a blank at its end.

    >>> completion("fedsmoo data ")[1]["COMP_CWORD"]
    '2'
    """
    count = len(words.split()) - (not words.endswith(" "))
    return ["-c", START], {"_FEDSMOO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}


def told(case: Case) -> list[str]:
    """Return the lines that a case prints."""
    words, more = case
    done = subprocess.run(
        [sys.executable, *words], env=environment(ROOT) | more, capture_output=True, text=True, check=False
    )
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def commands(before: str = "") -> list[str]:
    """Return every command, those within groups (``data get``) included, as completion names them."""
    found: list[str] = []
    for line in told(completion(f"fedsmoo {before}")):
        if name := line.split("\t")[0].strip():
            found += [f"{before}{name}"]
            if not before:
                found += commands(f"{name} ")
    return found


def cases(only: str | None = None) -> dict[str, Case]:
    """Return what is measured, by what a user would type."""
    words = ["--version", "--help", *(f"{name} --help" for name in commands())]
    found = {f"fedsmoo {w}": (["-c", START, *w.split()], {}) for w in words}
    found |= {f"completion of '{w}'": completion(w) for w in ("fedsmoo ", "fedsmoo ru", "fedsmoo run --al")}
    return {name: case for name, case in found.items() if only is None or only in name}


def seconds(case: Case) -> float:
    """Return the processor's seconds of one child; one that fails ends the program."""
    words, more = case
    with Path(os.devnull).open("w") as nowhere:
        child = subprocess.Popen([sys.executable, *words], env=environment(ROOT) | more, stdout=nowhere)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)  # it was waited for
    if child.returncode:
        raise SystemExit(f"python {' '.join(words)} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def measure(asked: Mapping[str, Case], repeat: int) -> dict[str, float]:
    """Return the median seconds of each case, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for turn in range(repeat):
        for name, case in asked.items():
            taken[name].append(seconds(case))
        print(f"turn {turn + 1} of {repeat}", file=sys.stderr, flush=True)
    return {name: statistics.median(times) for name, times in taken.items()}


def judge(found: Mapping[str, float], limit: float = LIMIT) -> dict[str, dict[str, Any]]:
    """Return each case's seconds, its ratio to importing PyTorch, and whether that is within the limit."""
    torch = found[TORCH]
    ratios = {name: time / torch for name, time in found.items() if name != TORCH}
    return {n: {"seconds": round(found[n], 3), "ratio": round(r, 3), "quick": r <= limit} for n, r in ratios.items()}


def line(name: str, row: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    return f"{name:<34} {row['seconds']:6.2f} s  {row['ratio']:5.2f}  {'ok' if row['quick'] else 'SLOW'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="turns")
    parser.add_argument("--only", help="commands with this in their name")
    parser.add_argument("--keep", action="store_true", help=f"add the outcome to {OUTCOMES.relative_to(ROOT)}")
    given = parser.parse_args()
    refuse_other_package(ROOT)
    asked = cases(given.only)
    if not asked:
        raise SystemExit(f"no command has {given.only!r} in its name")
    found = measure({TORCH: (["-c", TORCH], {}), **asked}, given.repeat)
    rows = judge(found)
    print(f'python -c "{TORCH}": {found[TORCH]:.2f} s of the processor')
    print("\n".join(line(name, row) for name, row in rows.items()))
    slow = sum(not r["quick"] for r in rows.values())
    print(f"{len(rows) - slow} of {len(rows)} take at most a third of it")
    if given.keep:
        commit = {"commit": full_name("HEAD"), "dirty": bool(git("status", "--porcelain", "--", "src"))}
        entry = {**commit, **circumstances(), "repeat": given.repeat, "import_torch": round(found[TORCH], 3)}
        add(OUTCOMES, entry | {"commands": rows}, ("commit", "dirty", "cpu"))
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
