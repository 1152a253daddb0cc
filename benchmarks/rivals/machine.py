"""The machine that rivals are measured on: how busy it is, what it is, and the commit that is measured."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores others keep busy just now."""

    def read() -> tuple[int, int]:
        ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    before, idle_before = read()
    time.sleep(seconds)
    after, idle_after = read()
    return (os.cpu_count() or 1) * (1 - (idle_after - idle_before) / max(1, after - before))


def wait_for_quiet(patience: float, bound: float = 0.3) -> float:
    """Wait until others use little of the machine, or patience ends; the cores that they use at that moment."""
    until = time.monotonic() + patience
    while (busy := busy_cores()) > bound and time.monotonic() < until:
        time.sleep(1)
    return busy


def hardware() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"cpu": name, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def source() -> dict[str, Any]:
    """The commit that is measured, and whether files were changed since."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    return {
        "commit": git("rev-parse", "HEAD"),
        "changed_since": bool(git("status", "--porcelain", "src", "benchmarks")),
    }
