"""How often a first round crosses from room to room, and how the walk goes.

    python -m benchmarks.checks.crossings                  # this checkout as it is
    python -m benchmarks.checks.crossings COMMIT --keep    # another commit; adds it to results/crossings.json

What is followed is ``fedsmoo run --rounds 1`` on a CPU with all defaults (FedSMOO, digits, the MLP), by
``sys.setprofile``. A room is a folder or a module directly below ``src/fedsmoo``. A call crosses rooms if the function
that is called and the nearest function of the package around it are in different rooms. Two walks are counted, each up
to the moment when the first round's record is written: from the start of the command, and from the start of the round
(``Simulation.advance``).

A *crossing* is a pair of functions, however often the one calls the other: 50 local steps are one way, not 50. From the
start of the command, commit 34f1e82 has 110 crossings through 46 modules so counted; this is the definition nearest to
the 117 through 46 that were counted there by other means. *Calls* counts every time, steps and clients included.
Loading modules, and what they call meanwhile, does not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checks.commits import (
    ROOT,
    add,
    checkout,
    circumstances,
    environment,
    full_name,
    git,
    refuse_other_package,
)

OUTCOMES = ROOT / "results" / "crossings.json"
Call = Sequence[Any]  # depth, module, function
Way = tuple[str, str, str, str]  # module and function that call, module and function that are called


def room(module: str) -> str:
    """Return the room of a module's file: the folder directly below the package, or the module itself.

    >>> room("engines/steps/eager.py"), room("cli.py")
    ('engines', 'cli')
    """
    return module.split("/")[0].removesuffix(".py")


def ways(calls: Iterable[Call]) -> Iterator[Way]:
    """Yield who calls whom, for every call; calls whose caller is outside of the walk have none."""
    around: list[tuple[str, str]] = []
    for depth, module, function in calls:
        if function == "<module>":
            around[depth:] = [("", "")]  # what a module does while it is loaded is nobody's walk
            continue
        del around[depth:]
        around += [("", "")] * (depth - len(around))
        if around and around[-1][0]:
            yield (*around[-1], module, function)
        around.append((module, function))


@dataclass
class Node:
    """A room in the walk, how often it is entered from the room around it, and the rooms that are entered from it."""

    name: str
    entered: int = 0
    modules: set[str] = field(default_factory=set)
    below: dict[str, Node] = field(default_factory=dict)

    def lines(self, indent: int = 0) -> Iterator[str]:
        """Yield the rooms as an indented tree, with the modules and the number of calls that enter each."""
        names = ", ".join(sorted(Path(m).stem for m in self.modules))
        yield f"{'  ' * indent}{self.name} x{self.entered} ({names})"
        for node in self.below.values():
            yield from node.lines(indent + 1)


def tree(calls: Iterable[Call]) -> Node:
    """Return the walk as a tree of rooms: calls within a room stay in it, and equal ways down are one branch."""
    top = Node("")
    around: list[Node] = []
    for depth, module, _ in calls:
        del around[depth:]
        parent = around[-1] if around else top
        around += [parent] * (depth - len(around))
        node = parent if parent.name == room(module) else parent.below.setdefault(room(module), Node(room(module)))
        node.entered += node is not parent
        node.modules.add(module)
        around.append(node)
    return top


def count(calls: Sequence[Call]) -> dict[str, Any]:
    """Count the crossings of a walk, the calls that cross, the modules it comes through, and pairs of rooms."""
    across = [w for w in ways(calls) if room(w[0]) != room(w[2])]
    pairs = Counter(f"{room(a)} -> {room(b)}" for a, _, b, _ in set(across))
    modules = {module for _, module, function in calls if function != "<module>"}
    return {
        "crossings": len(set(across)),
        "modules": len(modules),
        "rooms": len({room(m) for m in modules}),
        "calls": len(across),
        "pairs": dict(sorted(pairs.items(), key=lambda item: (-item[1], item[0]))),
    }


def walk(source: Path) -> tuple[list[Call], int]:
    """Return the calls of a first round with the code of a checkout, and where among them the round begins."""
    refuse_other_package(source)
    with tempfile.TemporaryDirectory() as place:
        words = [sys.executable, str(ROOT / "benchmarks" / "checks" / "trace.py"), place]
        done = subprocess.run(words, env=environment(source), cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr.strip() or f"the run ended with {done.returncode}")
        found = json.loads((Path(place) / "trace.json").read_text())
    return found["calls"], found["round"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", nargs="?", help="a commit instead of this checkout")
    parser.add_argument("--keep", action="store_true", help=f"add the counts to {OUTCOMES.relative_to(ROOT)}")
    given = parser.parse_args()
    if given.commit is None:
        calls, start = walk(ROOT)
        commit, dirty = full_name("HEAD"), bool(git("status", "--porcelain", "--", "src"))
    else:
        with tempfile.TemporaryDirectory() as place, checkout(given.commit, Path(place) / "source") as source:
            calls, start = walk(source)
        commit, dirty = full_name(given.commit), False
    depth = calls[start][0]
    whole, part = count(calls), count([(d - depth, m, f) for d, m, f in calls[start:] if d >= depth])
    print("\n".join(line for node in tree(calls).below.values() for line in node.lines()))
    for title, found in (("from the start of the command", whole), ("from the start of the round", part)):
        print(f"\n{title}: {found['crossings']} crossings, {found['modules']} modules, {found['rooms']} rooms, "
              f"{found['calls']} calls")  # fmt: skip
        print("\n".join(f"{n:5}  {pair}" for pair, n in found["pairs"].items()))
    if given.keep:
        entry = {"commit": commit, "dirty": dirty, **circumstances(), "command": whole, "round": part}
        add(OUTCOMES, entry, ("commit", "dirty"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
