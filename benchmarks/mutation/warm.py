"""One process that has imported what is slow to import, and forks a child per mutant."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutation.draw import Mutant

# Not Triton and not the package: the tests say whether kernels are interpreted before the first is imported.
HEAVY = [
    "torch", "torch.func", "torch.distributed", "numpy", "scipy.stats", "scipy.optimize", "scipy.sparse.linalg",
    "pandas", "sklearn.datasets", "matplotlib.pyplot", "rich.console", "rich.table", "rich.progress", "typer",
    "safetensors.torch", "pytest", "PIL.Image", "hypothesis",
]  # fmt: skip
ABOVE = {".git", ".venv", "runs", "build", "dist", "wandb", "mlruns"}  # at the top alone: a room is called runs, too
ROOT = str(Path(__file__).resolve().parents[2])
ANYWHERE = shutil.ignore_patterns(".*_cache", "*.egg-info")


def import_heavy() -> None:
    """Import what children share."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def copy_tree(root: Path, to: Path) -> Path:
    """A copy of the repository that may be mutated; times are kept, so that compiled files stay valid."""

    def left_behind(folder: str, names: list[str]) -> set[str]:
        return ANYWHERE(folder, names) | (ABOVE.intersection(names) if Path(folder) == root else set())

    shutil.copytree(root, to, ignore=left_behind, symlinks=True)
    return to


@dataclass
class Child:
    """A running mutant."""

    mutant: Mutant
    pid: int
    place: Path
    began: float
    limit: float
    tests: int


class Watcher:
    """A plugin of pytest: only the tests asked for, in that order, and a note of the first that fails."""

    def __init__(self, order: list[str], out: Path) -> None:
        self.rank, self.out = {t: i for i, t in enumerate(order)}, out

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda i: self.rank[i.nodeid])

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self._note(report.nodeid)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self._note(f"{report.nodeid} (import)")

    def _note(self, test: str) -> None:
        if not self.out.exists():
            self.out.write_text(json.dumps(test))


def start(mutant: Mutant, root: Path, place: Path, tests: list[str], limit: float) -> Child:
    """Fork a child that runs the tests on the mutant, in the copy of the repository at ``place``."""
    source = root / mutant.file
    changed = place / mutant.file
    changed.write_bytes(mutant.applied(source.read_bytes()))
    os.utime(changed, (0, int(mutant.id[:7], 16)))  # unlike any other version's, so that no compiled file passes for it
    for name in ("killed", "tmp"):
        _remove(place.parent / name)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            _child(place, tests)
        finally:
            os._exit(70)
    return Child(mutant, pid, place, time.monotonic(), limit, len(tests))


def _child(place: Path, tests: list[str]) -> None:
    log = os.open(place.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(place)
    os.environ |= {"PYTHONPATH": str(place / "src"), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1"}
    sys.dont_write_bytecode = True
    sys.argv = ["pytest"]
    # What is imported from here on is the copy's, also the scripts of which this process is one.
    sys.path[:] = [str(place / "src"), *(p for p in sys.path if p not in ("", ROOT) and not p.endswith("/src"))]
    for name in [n for n in sys.modules if n.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]
    import pytest

    words = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={place.parent / 'tmp'}", f"--rootdir={place}"]
    files = list(dict.fromkeys(t.split("::")[0] for t in tests))
    code = int(pytest.main([*words, *files], plugins=[Watcher(tests, place.parent / "killed")]))
    sys.stdout.flush()
    os._exit(code)


def ended(child: Child, root: Path) -> dict | None:
    """What became of a mutant: ``killed_by`` a test, the clock or a crash, or None; and nothing while it runs."""
    seconds = time.monotonic() - child.began
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    late = pid == 0 and seconds > child.limit
    if pid == 0 and not late:
        return None
    end(child, wait=late)
    shutil.copy2(root / child.mutant.file, child.place / child.mutant.file)
    killed, code = child.place.parent / "killed", os.waitstatus_to_exitcode(status)
    by = json.loads(killed.read_text()) if killed.exists() else None
    if late:
        by = f"time limit of {child.limit:.0f} s"
    elif by is None and code not in (0, 5):
        by = f"exit {code}"
    return {"killed_by": by, "seconds": round(seconds, 1), "tests": child.tests}


def end(child: Child, wait: bool = True) -> None:
    """End a child and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if wait:
        os.waitpid(child.pid, 0)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
