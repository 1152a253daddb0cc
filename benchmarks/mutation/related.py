"""Which tests run which function: every test is run once, unmutated, and noted down; so which tests to ask first."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Not asked: what needs a browser, Flower, a GPU or a network, and what reads the sources as text.
LEFT_OUT = [
    "tests/deploy", "tests/gpu", "tests/pages/test_page.py", "tests/algorithms/boxes/test_docs.py",
    "tests/kernels/test_compiles.py",
]  # fmt: skip
FOLDERS = {  # of a room: where its own tests lie, which are asked first
    "core": ["core"], "algorithms": ["algorithms"], "engines": ["engines"], "data": ["data"],
    "runs": ["runs"], "sweeps": ["sweeps"], "paper": ["paper"], "analysis": ["analysis", "pages"],
    "kernels": ["kernels"], "compiler": ["compiler", "engines"], "metrics": ["metrics"], "operators": ["operators"],
}  # fmt: skip
Hit = tuple[bool, float, list[str]]
GROUP = re.compile(r"@[^\]/:]*$")  # what pytest-xdist appends to the name of a test that shares a process with others
PLUGIN = """
import json, os
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    import sitecustomize
    sitecustomize.begin(item.nodeid)

def pytest_runtest_logreport(report):
    line = {"test": report.nodeid, "seconds": report.duration, "outcome": report.outcome}
    if "PYTEST_XDIST_WORKER" in os.environ or not os.environ.get("MUTANTS_XDIST"):
        with open(os.environ["MUTANTS_TRACE"] + ".times", "a") as f:
            f.write(json.dumps(line) + "\\n")
"""


def files(root: Path) -> dict[str, str]:
    """The files of tests, each with a hash of its text."""
    found = sorted((root / "tests").rglob("test_*.py"))
    names = [p.relative_to(root).as_posix() for p in found]
    return {n: hashlib.sha256((root / n).read_bytes()).hexdigest()[:12] for n in names if not left_out(n)}


def left_out(name: str) -> bool:
    """Whether a file of tests is not asked."""
    return any(name == n or name.startswith(f"{n}/") for n in LEFT_OUT)


def update(root: Path, copy: Path, known: dict[str, Any], workers: int, wanted: list[str], log: Path) -> dict[str, Any]:
    """The map with every file of tests whose text has changed run once more, in ``copy``; ``log``: what pytest says."""
    now = {n: h for n, h in files(root).items() if not wanted or any(n.startswith(w) for w in wanted)}
    old = {n: e for n, e in known.items() if n in now and e["hash"] == now[n] and not _moved(root, e)}
    new = sorted(set(now) - set(old))
    if not new:
        return old
    print(f"running {len(new)} of {len(now)} files of tests once, to see which functions they run", flush=True)
    trace = copy.parent / "trace"
    for file in (trace, Path(f"{trace}.times")):
        file.unlink(missing_ok=True)
    shutil.copy(HERE / "sitecustomize.py", copy / "src")
    (copy / "src/mutants_plugin.py").write_text(PLUGIN)
    spread = ["-n", str(workers), "--dist", "loadgroup"] if workers > 1 else []
    environment = {**os.environ, "MUTANTS_TRACE": str(trace), "PYTHONPATH": str(copy / "src")}
    environment |= {"MUTANTS_XDIST": "1"} if spread else {}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "mutants_plugin", "--continue-on-collection-errors", *spread]
    with open(log, "w") as said:
        subprocess.run([*words, *new], cwd=copy, env=environment, stdout=said, stderr=subprocess.STDOUT, check=False)
    for name in ("sitecustomize.py", "mutants_plugin.py"):
        (copy / "src" / name).unlink()
    if not Path(f"{trace}.times").is_file():
        sys.exit("no test ran; pytest said:\n" + log.read_text()[-3000:])
    return old | read(trace, {n: now[n] for n in new})


def _moved(root: Path, entry: dict[str, Any]) -> bool:
    """Whether tests ran a file of sources that is gone."""
    ran = {f.partition(":")[0] for e in entry["tests"].values() for f in e["functions"]}
    return not all((root / f).is_file() for f in ran)


def read(trace: Path, hashes: dict[str, str]) -> dict[str, Any]:
    """What a run of the tests left: per file its tests that passed, their seconds and functions."""
    seconds: dict[str, float] = defaultdict(float)
    passed, bad = set(), set()
    for line in Path(f"{trace}.times").read_text().splitlines():
        entry = json.loads(line)
        entry["test"] = GROUP.sub("", entry["test"])
        seconds[entry["test"]] += entry["seconds"]
        (passed if entry["outcome"] == "passed" else bad).add(entry["test"])
    functions: dict[str, set[str]] = defaultdict(set)
    for line in trace.read_text(errors="replace").splitlines():
        test, _, function = line.rpartition("\t")
        functions[GROUP.sub("", test)].add(function)
    out: dict[str, Any] = {n: {"hash": h, "tests": {}} for n, h in hashes.items()}
    for test in sorted(passed - bad):
        file = test.split("::")[0]
        if file in out:
            out[file]["tests"][test] = {"seconds": round(seconds[test], 2), "functions": sorted(functions[test])}
    return out


def tests_for(known: dict[str, Any], file: str, function: str, budget: float) -> list[str]:
    """The tests that run a function, the most related and quickest files first, for up to ``budget`` seconds.

    What runs while a module or a class is made has no test of its own: then those that run anything else of the class,
    or of the module, and after them the others of its room; of a module that nothing runs, the tests of its room.
    """
    place, outer = f"{file}:{function}", function.rpartition(".<locals>.")[0] or function
    circles = [lambda f: f == place, lambda f: f.startswith(f"{file}:{outer}."), lambda f: f.startswith(f"{file}:")]
    room = f"src/fedsmoo/{file.split('/')[2]}/"
    circles.append(lambda f: f.startswith(room))
    own = tuple(f"tests/{folder}/" for folder in FOLDERS[file.split("/")[2]])
    for circle in circles:
        hits = _hits(known, own, circle)
        if hits:
            asked = {t for _, _, mine in hits for t in mine}
            others = [(True, c, [t for t in mine if t not in asked]) for no, c, mine in _hits(known, own) if not no]
            more = [] if circle is circles[0] else [h for h in others if h[2]]
            return _within([*sorted(hits), *sorted(more)], known, budget)
    return []


def _hits(known: dict[str, Any], own: tuple[str, ...], circle: Callable[[str], bool] = bool) -> list[Hit]:
    """The tests that run a function of a circle, by file: whether it is of another room, its cost, and they."""
    hits = []
    for name, entry in known.items():
        mine = [t for t, e in entry["tests"].items() if any(map(circle, e["functions"]))]
        if mine:
            hits.append((not name.startswith(own), sum(entry["tests"][t]["seconds"] for t in mine), mine))
    return hits


def _within(hits: list[Hit], known: dict[str, Any], budget: float) -> list[str]:
    """File after file; of one that costs too much, the tests that are quick."""
    chosen: list[str] = []
    left = budget
    for _, _, tests in hits:
        entry = known[tests[0].split("::")[0]]["tests"]
        for test in tests:
            if entry[test]["seconds"] <= left:
                chosen.append(test)
                left -= entry[test]["seconds"]
    if not chosen:  # all take long: the quickest of them
        every = [t for _, _, tests in hits for t in tests]
        chosen = [min(every, key=lambda t: seconds(known, [t]))]
    return chosen


def seconds(known: dict[str, Any], tests: list[str]) -> float:
    """How long tests took, unmutated."""
    return sum(known[t.split("::")[0]]["tests"][t]["seconds"] for t in tests)
