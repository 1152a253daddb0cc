"""The whole test suite several times on a busy machine: ``make test-repeat N=10 BUSY=2``.

Beside every repetition some processes do nothing but count, as if others were at work. After each one a line of JSON is
added to ``results/test_repeat.jsonl``: when, of which commit, on what, and what failed. Call again to add more.
``--select tests/pages`` or ``--ignore tests/gpu`` repeats a part, and its lines say which. Given tests
(``python -m benchmarks.checks.repeat --times 5 tests/pages``), it tries those, and keeps no line of it.

It takes this checkout's package, installed or not, and the other packages of ``--python``. On a machine without git,
``FEDSMOO_COMMIT`` says what is tested.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OUTCOMES = ROOT / "results" / "test_repeat.jsonl"
LOGS = ROOT / "runs" / "test-repeat"
# Ends with its parent, even one that was killed and could not end it.
COUNT = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass\n"


@contextmanager
def child(command: list[str], grace: float = 60, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended, by its id, when this is left, and waited for."""
    process = subprocess.Popen(command, cwd=ROOT, **more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class Suite:
    """What is repeated: which tests, by which Python, in how many processes."""

    python: str
    workers: int
    tests: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The command line of one repetition, as in ``make test``; one process does without pytest-xdist."""
        spread = ["-n", str(self.workers), "--dist", "loadfile", "--no-loadscope-reorder"] if self.workers else []
        return [self.python, "-m", "pytest", *spread, *(f"--ignore={path}" for path in self.ignored), *self.tests]


def run_once(suite: Suite, log: Path) -> dict[str, Any]:
    """Run the tests, and say what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "junit.xml"
        words = [*suite.words, f"--junitxml={xml}"]
        paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        began = time.monotonic()
        with log.open("wb") as out, child(words, stdout=out, stderr=out, env=environment) as p:
            code = p.wait()
        seconds = time.monotonic() - began
        counts, failures = outcomes(xml) if xml.is_file() else ({}, {})
    if code and not failures:  # interrupted from outside, out of memory, nothing collected
        failures["pytest"] = f"ended with {code}: {last_line(log)}"
    return {**counts, "seconds": round(seconds, 1), "failures": failures}


def outcomes(xml: Path) -> tuple[dict[str, int], dict[str, str]]:
    """How many tests passed, failed and were skipped, and the first line of every failure by the test's name."""
    counts, failures = {"passed": 0, "failed": 0, "skipped": 0}, {}
    for case in ElementTree.parse(xml).iter("testcase"):
        wrong = [*case.iter("failure"), *case.iter("error")]
        counts["failed" if wrong else "skipped" if case.find("skipped") is not None else "passed"] += 1
        if wrong:
            name = f"{case.get('classname')}::{case.get('name')}"
            failures[name] = (wrong[0].get("message") or wrong[0].text or "").strip().split("\n")[0][:300]
    return counts, failures


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def git(*words: str) -> str | None:
    """What git says; none where there is no git, or no checkout."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


VERSIONS = "import platform, importlib.metadata as m; print(platform.python_version(), m.version('torch'))"


def code() -> tuple[str | None, bool | None]:
    """Return the commit, and whether files differ from it.

    ``FEDSMOO_COMMIT``, with ``+dirty`` or ``+clean`` behind it where that is known, wins: a copy was told what it is.
    """
    if given := os.environ.get("FEDSMOO_COMMIT"):
        commit, _, mark = given.partition("+")
        return commit, {"dirty": True, "clean": False}.get(mark)
    changed = git("status", "--porcelain", "--", ".", f":!{OUTCOMES.relative_to(ROOT)}")
    return git("rev-parse", "HEAD"), None if changed is None else bool(changed)


def circumstances(busy: int, suite: Suite) -> dict[str, Any]:
    """When, of what and on what."""
    commit, dirty = code()
    python, torch = subprocess.run(
        [suite.python, "-c", VERSIONS], capture_output=True, text=True, check=True
    ).stdout.split()
    part = {"selected": [*suite.tests], "ignored": [*suite.ignored]}
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "dirty": dirty,
        "python": python,
        "torch": torch,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "workers": suite.workers,
        "busy": busy,
        **{name: paths for name, paths in part.items() if paths},  # the whole suite says nothing of it
    }


def repeat(times: int, busy: int, suite: Suite, out: Path | None) -> int:
    """So many repetitions; returns how many failed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = 0
    for k in range(1, times + 1):
        about, log = circumstances(busy, suite), LOGS / f"{os.getpid()}-{k}.log"
        with ExitStack() as held:
            for _ in range(busy):
                held.enter_context(child([sys.executable, "-c", COUNT], stderr=subprocess.DEVNULL))
            found = run_once(suite, log)
        if out is not None:
            with out.open("a") as f:
                f.write(json.dumps(about | found) + "\n")
        failed += bool(found["failures"])
        words = ", ".join(f"{found[n]} {n}" for n in ("passed", "failed", "skipped") if n in found)
        print(f"{k} of {times}: {words or 'no outcome'} in {found['seconds']:.0f} s, beside {busy} busy", flush=True)
        for name, line in found["failures"].items():
            print(f"  {name}: {line}", flush=True)
        if found["failures"]:
            print(f"  all it said: {log}", flush=True)
        else:
            log.unlink(missing_ok=True)
    return failed


def stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tests", nargs="*", help="only these tests; no line is kept then, unless --out says where")
    parser.add_argument("--select", action="append", default=[], help="only these tests, as their lines say")
    parser.add_argument("--ignore", action="append", default=[], help="not these tests, as their lines say")
    parser.add_argument("--python", default=sys.executable, help="the Python whose packages are taken (default: this)")
    parser.add_argument("--times", type=int, default=10, help="repetitions")
    parser.add_argument("--busy", type=int, default=2, help="processes that only count, beside")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    parser.add_argument("--out", type=Path, help=f"file of outcomes (default: {OUTCOMES.relative_to(ROOT)})")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    out = given.out or (None if given.tests else OUTCOMES)
    try:
        suite = Suite(given.python, given.workers, (*given.select, *given.tests), tuple(given.ignore))
        failed = repeat(given.times, given.busy, suite, out)
    except KeyboardInterrupt:
        print("stopped; what was repeated before is kept")
        return 130
    print(f"{given.times - failed} of {given.times} repetitions without a failure")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
