"""Processes that a test of the federation leaves behind are ended; others are not, whatever their command line says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE, wait_for

from .processes import descendants, end, family

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="knows processes by Linux' /proc")

SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]
# A program that starts another one in a session of its own, as Flower does, writes its id to a file, and ends; the
# other one may be deaf to SIGTERM.
LEAVES = """
import subprocess, sys
code = "import signal, time; {}print(flush=True); time.sleep(3600)"
deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if sys.argv[2] == "deaf" else ""
left = subprocess.Popen([sys.executable, "-c", code.format(deaf)], start_new_session=True, stdout=subprocess.PIPE)
left.stdout.readline()
open(sys.argv[1], "w").write(str(left.pid))
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_what_was_left_behind_is_ended_and_a_bystander_is_not(kind: str, tmp_path: Path) -> None:
    bystander = subprocess.Popen([*SLEEP, str(tmp_path)])  # its command line names the test's folder
    try:
        with family(grace=2):
            subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path / "id"), kind], check=True, timeout=PATIENCE)
            left = int((tmp_path / "id").read_text())
            assert runs(left)
            direct = subprocess.Popen(SLEEP)
        assert not runs(left)
        assert not runs(direct.pid)
        assert bystander.poll() is None
        assert runs(bystander.pid)
    finally:
        end(bystander)


def test_descendants_are_found_through_their_parents(tmp_path: Path) -> None:
    code = f"import subprocess; subprocess.run({SLEEP!r})"
    with family():
        parent = subprocess.Popen([sys.executable, "-c", code])
        wait_for(lambda: len(descendants(parent.pid)) == 1, "the child")
        (child,) = descendants(parent.pid)
        assert descendants(parent.pid, but=[child]) == set()
        assert runs(child)
    assert not runs(child)
