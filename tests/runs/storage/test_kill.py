"""A run killed by SIGKILL several times and resumed leaves the same bits as one never stopped."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked
import pytest
from kinds import EACH_KIND
from patience import PATIENCE

DRIVER = Path(__file__).with_name("driver.py")
# What is saved and when is the same for both engines: each kind is killed under one of them, FedSMOO under both.
METHODS = {
    engine: [kind for i, kind in enumerate(EACH_KIND) if kind == "fedsmoo" or i % 2 == part]
    for part, engine in enumerate(["serial", "batched"])
}
# Methods of a user's: a server that sees every reply, numbers that are kept, and personal models.
METHODS["serial"] += ["Median", "Heads"]
METHODS["batched"] += ["Numbers", "Ditto"]
KILLS = dict.fromkeys((m for methods in METHODS.values() for m in methods), 2) | {"fedsmoo": 6}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("engine", METHODS)
def test_kills_of_every_kind_of_method_change_no_bit(engine: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests'}"}
    words = [sys.executable, str(DRIVER), engine, str(tmp_path), "0"]
    words.append(",".join(f"{method}:{KILLS[method]}" for method in METHODS[engine]))
    done = forked.run(words, env=env, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["method"] for r in reports] == METHODS[engine]
    assert [r["method"] for r in reports if not r["equal"]] == []
    assert all(r["kills"] == KILLS[r["method"]] for r in reports)
    moments = {m for r in reports for m in r["moments"]}
    assert {"within save_file", "before replace", "after replace", "before advance", "before fsync"} <= moments
    assert len(moments) == 9, moments
