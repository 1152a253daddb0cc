"""The suite repeated beside busy processes: what is kept of it, and that nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.processes import descendants
from patience import PATIENCE, ended, wait_for

ROOT = Path(__file__).parents[2]
TESTS = """
import fedsmoo, os, pytest, time
from pathlib import Path

def test_right():
    pass

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass

def test_wrong():
    place = Path(__file__).parent
    (place / "here").touch()
    while (place / "wait").exists():
        time.sleep(0.05)
    assert not (place / "fail").exists(), "there is a file"
"""


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "test_some.py").write_text(TESTS)
    options = ["--workers", "0", "--busy", "1", "--out", str(folder / "out.jsonl"), *words]
    command = [sys.executable, "-m", "benchmarks.checks.repeat", *options]
    command += [] if "--select" in words else [str(folder / "test_some.py")]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_every_repetition_adds_a_line_and_a_failure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a selection the line says what it is of."""
    other = tmp_path / "test_other.py"
    other.write_text("import fedsmoo\ndef test_other():\n    assert False\n")
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("FEDSMOO_COMMIT", "0123abc+clean")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))  # no git
    monkeypatch.delenv("PYTHONPATH", raising=False)  # nor an installed package, maybe
    part = ["--select", str(tmp_path), "--ignore", str(other), "--python", sys.executable]
    for times, fail in (("1", False), ("2", True)):
        if fail:
            (tmp_path / "fail").touch()
        process = begin(tmp_path, "--times", times, *(part if fail else []))
        with ended(process):
            said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == int(fail), said
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(r["passed"], r["failed"], r["skipped"]) for r in rows] == [(2, 0, 1), (1, 1, 1), (1, 1, 1)]
    assert [len(r["failures"]) for r in rows] == [0, 1, 1]
    ((name, line),) = rows[1]["failures"].items()  # before the name, where the folder of a test is
    assert name.endswith("test_some::test_wrong")
    assert "there is a file" in line
    assert all(r["busy"] == 1 and r["seconds"] > 0 and r["date"] and r["torch"] for r in rows)
    assert "0 of 2 repetitions without a failure" in said
    assert all((r["commit"], r["dirty"]) == ("0123abc", False) for r in rows)
    assert rows[1]["selected"] == rows[2]["selected"] == [str(tmp_path)]
    assert (rows[1]["ignored"], rows[0].get("ignored")) == ([str(other)], None)


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="knows processes by Linux' /proc")
def test_stopped_in_the_middle_it_leaves_nobody_behind(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    process = begin(tmp_path)
    with ended(process):
        wait_for((tmp_path / "here").exists, "the test to begin")
        below = descendants(process.pid)
        assert len(below) == 2  # the busy one, and pytest
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "stopped" in said) == (130, True)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in below)
    assert not (tmp_path / "out.jsonl").exists()
