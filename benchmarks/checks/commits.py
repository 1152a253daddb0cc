"""Commits checked out beside each other, and what is kept of a measurement of them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def git(*words: str) -> str:
    """Return what git says; an error of it ends the program with its words."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words[:2])}: {done.stderr.strip()}")
    return done.stdout.strip()


def full_name(commit: str) -> str:
    """Return a commit's forty digits."""
    return git("rev-parse", "--verify", f"{commit}^{{commit}}")


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a worktree of its own, which is removed in the end."""
    git("worktree", "add", "--detach", "--quiet", str(folder), commit)
    try:
        refuse_other_package(folder)
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


def environment(source: Path) -> dict[str, str]:
    """Return an environment with one thread, the loopback interface, and the package of one checkout."""
    fixed = {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {k: v for k, v in os.environ.items() if not k.startswith("FEDSMOO")} | fixed


def refuse_other_package(source: Path) -> None:
    """Make sure that a child imports the package of this checkout, and not an installed one."""
    words = [sys.executable, "-c", "import fedsmoo; print(fedsmoo.__file__)"]
    found = subprocess.run(words, env=environment(source), capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).resolve().is_relative_to(source.resolve()):
        raise SystemExit(f"{found} would be measured instead of the package in {source}")


def processor() -> str:
    """Return the processor's name, where Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.machine())


def circumstances() -> dict[str, Any]:
    """Return when and on what something is measured."""
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"date": date, "torch": version("torch"), "python": platform.python_version(), "cpu": processor()}


def add(path: Path, entry: dict[str, Any], same: Sequence[str]) -> None:
    """Add an entry to a file of entries; one that is equal in all of ``same`` is replaced."""
    before = json.loads(path.read_text()) if path.exists() else []
    others = [e for e in before if any(e[k] != entry[k] for k in same)]
    path.write_text(json.dumps([*others, entry], indent=1) + "\n")
