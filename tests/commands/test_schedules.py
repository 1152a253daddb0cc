"""Schedules on the command line."""

from __future__ import annotations

from pathlib import Path

from .conftest import TINY, Call
from .test_bad_input import one_line

METHOD = """
from dataclasses import dataclass
from fedsmoo import FedAvg, Schedule, option

@dataclass(frozen=True)
class Warm(FedAvg):
    lr_server: float = option(Schedule(1.0, warmup=5), "server learning rate", within="(0, inf)")
"""


def test_a_run_with_schedules_says_so_everywhere(call: Call) -> None:
    words = ["--set", "r=cosine:0:0.1:200", "--set", "beta=steps:10:100:1"]
    assert call("run", *TINY, *words, "--out", "runs/a").code == 0
    assert 'r = "cosine:0:0.1:200"\nbeta = "steps:10:100:1"\n' in Path("runs/a/config.toml").read_text()
    assert '{"beta": "steps:10:100:1", "r": "cosine:0:0.1:200"}' in call("runs", "runs", "--show", "options").out
    assert call("run", "runs/a/config.toml", "--out", "runs/b").code == 0
    lines = [Path(f"runs/{run}/metrics.jsonl").read_text().splitlines()[-1] for run in "ab"]
    assert [line[: line.index('"seconds')] for line in lines] == [lines[0][: lines[0].index('"seconds')]] * 2


def test_a_method_may_have_a_schedule_of_its_own(call: Call) -> None:
    Path("mine.py").write_text(METHOD)
    assert "warmup:5:1" in call("show", "mine.py:Warm").out
    assert call("run", "--algorithm", "mine.py:Warm", *TINY, "--out", "runs/a").code == 0
    assert call("run", "--algorithm", "mine.py:Warm", *TINY, "--set", "lr_server=1", "--out", "runs/b").code == 0
    names = [Path(f"runs/{run}/model.safetensors").read_bytes() for run in "ab"]
    assert names[0] != names[1]


def test_slips(call: Call) -> None:
    one_line(call("run", "--set", "r=cosine:0:0.1"), "r: 'cosine:0:0.1' is no schedule: write linear:FROM:TO:ROUNDS")
    one_line(call("run", "--set", "r=linear:0.1:-1:5"), "r (linear:0.1:-1:5) is -1.0, but must be at least 0")
    one_line(call("run", "--set", "sam=linear:0:1:5"), "sam is 'linear:0:1:5', but must be true or false")
