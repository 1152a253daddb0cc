"""The whole test suite several times on a busy machine: ``make test-repeat N=10 BUSY=2``.

Beside every repetition some processes do nothing but count, as if others were at work. After each one a line of JSON is
added to ``results/test_repeat.jsonl``: when, of which commit, on what, and what failed. Call again to add more. Given
tests (``python benchmarks/repeat.py --times 5 tests/pages``), it runs those only, and keeps no line of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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


def suite(workers: int, tests: list[str], log: Path) -> dict[str, Any]:
    """Run the tests as ``make test`` does, and say what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "junit.xml"
        words = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder", f"--junitxml={xml}", *tests]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        began = time.monotonic()
        with (
            log.open("wb") as out,
            child([sys.executable, "-m", "pytest", *words], stdout=out, stderr=out, env=environment) as p,
        ):
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


def circumstances(busy: int, workers: int) -> dict[str, Any]:
    """When, of what and on what."""
    changed = git("status", "--porcelain", "--", ".", f":!{OUTCOMES.relative_to(ROOT)}")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": git("rev-parse", "HEAD") or os.environ.get("FEDSMOO_COMMIT"),  # of a copy that is no checkout
        "dirty": None if changed is None else bool(changed),
        "python": platform.python_version(),
        "torch": version("torch"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "workers": workers,
        "busy": busy,
    }


def repeat(times: int, busy: int, workers: int, tests: list[str], out: Path | None) -> int:
    """So many repetitions; returns how many failed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = 0
    for k in range(1, times + 1):
        about, log = circumstances(busy, workers), LOGS / f"{os.getpid()}-{k}.log"
        with ExitStack() as held:
            for _ in range(busy):
                held.enter_context(child([sys.executable, "-c", COUNT], stderr=subprocess.DEVNULL))
            found = suite(workers, tests, log)
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
    parser.add_argument("--times", type=int, default=10, help="repetitions")
    parser.add_argument("--busy", type=int, default=2, help="processes that only count, beside")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    parser.add_argument("--out", type=Path, help=f"file of outcomes (default: {OUTCOMES.relative_to(ROOT)})")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    out = given.out or (None if given.tests else OUTCOMES)
    try:
        failed = repeat(given.times, given.busy, given.workers, given.tests, out)
    except KeyboardInterrupt:
        print("stopped; what was repeated before is kept")
        return 130
    print(f"{given.times - failed} of {given.times} repetitions without a failure")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
