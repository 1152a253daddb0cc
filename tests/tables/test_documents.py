"""The tables in README and docs are those that the measured results give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_benchmark_tables_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_paper_tables_are_up_to_date() -> None:
    words = [sys.executable, "-m", "fedsmoo", "table", "--update", "README.md", "docs/results.md", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
