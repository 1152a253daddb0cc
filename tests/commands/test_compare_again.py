"""A comparison that was stopped goes on when the same command is given again, and only then."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsmoo.commands import compare as compare_command
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.sweeps import compare as library
from fedsmoo.sweeps import queue

from .conftest import TINY, Call, otherwise, tiny
from .test_bad_input import one_line

ROUNDS = ["--rounds", "3"]
SAME = ["compare", "--algorithms", "fedavg,scaffold", "--seeds", "0,1", *tiny(*ROUNDS)]
FOLDERS = ["fedavg-seed0", "fedavg-seed1", "scaffold-seed0", "scaffold-seed1"]


@pytest.fixture
def stopped_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C in the round of this number, counted over all runs in the folder ``both``."""

    def stop(rounds: int) -> None:
        def asked() -> bool:
            return sum(len(p.read_bytes().splitlines()) for p in Path("both").glob("*/metrics.jsonl")) >= rounds

        @contextmanager
        def interruptible() -> Iterator[Callable[[], bool]]:
            yield asked

        monkeypatch.setattr(compare_command, "interruptible", interruptible)

    return stop


def numbers(folder: Path) -> list[dict[str, Any]]:
    """A run's rounds without its times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def stopped(call: Call, stopped_after: Callable[[int], None]) -> Path:
    """Two of four runs are done, the third is in the middle, the last was not begun."""
    stopped_after(8)
    answer = call(*SAME, "--out", "both")
    assert answer.code == 130
    assert answer.err.endswith("saved after round 2 of 3; go on with: the same command\n")
    stopped_after(1000)
    return Path("both")


def test_the_same_command_goes_on_to_the_same_bits(stopped: Path, call: Call) -> None:
    assert sorted(p.name for p in stopped.iterdir()) == FOLDERS[:3]
    done = {name: contents(stopped / name) for name in FOLDERS[:2]}
    answer = call(*SAME, "--out", "both")
    assert answer.code == 0, answer.err
    assert re.search(r"^FedAvg: 0 runs in \d+ s, 2 done before$", answer.err, re.M)
    assert {name: contents(stopped / name) for name in FOLDERS[:2]} == done
    whole = call(*SAME, "--out", "whole")
    for name in FOLDERS:
        assert numbers(stopped / name) == numbers(Path("whole", name))
        assert (stopped / name / "model.safetensors").read_bytes() == Path(
            "whole", name, "model.safetensors"
        ).read_bytes()
    assert [line.split()[:4] for line in answer.out.splitlines()[1:3]] == [
        line.split()[:4] for line in whole.out.splitlines()[1:3]
    ]
    before = contents(stopped)
    again = call(*SAME, "--out", "both")
    assert again.out == answer.out  # to the seconds: nothing ran
    assert {k: v for k, v in contents(stopped).items() if k != "curves.png"} == {
        k: v for k, v in before.items() if k != "curves.png"
    }


def test_the_engine_chosen_at_first_is_kept(call: Call, stopped_after: Callable[[int], None], monkeypatch) -> None:
    words = [w for w in SAME if w not in ("--engine", "serial")]
    monkeypatch.setattr(library, "assemble", lambda c: SimpleNamespace(engine=SimpleNamespace(name="serial")))
    stopped_after(8)
    assert call(*words, "--out", "both").code == 130
    monkeypatch.setattr(library, "assemble", lambda c: SimpleNamespace(engine=SimpleNamespace(name="batched")))
    stopped_after(1000)
    assert call(*words, "--out", "both").code == 0
    assert {read_run(Path("both", name)).config.engine for name in FOLDERS} == {"serial"}


def test_more_methods_and_seeds_may_be_added(stopped: Path, call: Call) -> None:
    (stopped / "report.html").write_text("mine")
    words = ["fedavg,scaffold,fedsam" if w == "fedavg,scaffold" else "0,1,2" if w == "0,1" else w for w in SAME]
    assert call(*words, "--out", "both").code == 0
    assert len([p for p in stopped.iterdir() if p.is_dir()]) == 9
    assert (stopped / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--lr", "0.2"], "both/fedavg-seed0 was begun with other settings (lr was 0.1, is 0.2): choose another"),
        (["--set", "scaffold.lr_server=0.5"], "both/scaffold-seed0 was begun with other settings (algorithm_options"),
        (["--engine", "batched"], "(engine was serial, is batched)"),
        (["--target", "0.5"], "(target was None, is 0.5)"),
        (["--seeds", "0"], "both also holds fedavg-seed1: choose another folder"),
        (["--algorithms", "fedavg,fedsam"], "both also holds scaffold-seed0: choose another folder"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_another_command_is_refused(change: list[str], message: str, stopped: Path, call: Call) -> None:
    before = contents(stopped)
    one_line(call(*otherwise(SAME, *change), "--out", "both"), message)
    assert contents(stopped) == before


def test_runs_in_one_batch_go_on_too(
    call: Call, stopped_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: two seeds in one batch."""
    monkeypatch.setattr(library, "make_device", lambda name: SimpleNamespace(type="cuda"))
    words = otherwise(SAME, "--engine", "batched")
    assert call(*words, "--out", "whole").code == 0
    stopped_after(3)
    answer = call(*words, "--out", "both")
    assert answer.code == 130
    assert answer.err == "everything is saved; go on with: the same command\n"
    assert sorted(p.name for p in Path("both").iterdir()) == FOLDERS[:2]
    assert 1 <= min(len(numbers(Path("both", name))) for name in FOLDERS[:2]) < 3
    stopped_after(1000)
    assert call(*words, "--out", "both").code == 0
    for name in FOLDERS:
        assert numbers(Path("both", name)) == numbers(Path("whole", name))
        assert not Path("both", name, ".claim").exists()
    one_line(call(*words, "--out", "both/curves.png/inside"), "cannot write the run folder both/curves.png/inside")


def test_ctrl_c_twice_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(queue, "execute", interrupted)
    answer = call(*SAME, "--out", "both")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "stopped at once; go on from the last checkpoints with: the same command\n"


METHOD = "from fedsmoo.algorithms import FedAvg\nclass FedDecay(FedAvg):\n    factor = 1.0\n"
NET = "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"


@pytest.mark.parametrize("name", ["method.py", "net.py"])
def test_an_edited_file_is_not_averaged_with_what_it_was(name: str, call: Call) -> None:
    Path("method.py").write_text(METHOD)
    Path("net.py").write_text(NET)
    words = ["compare", "--algorithms", "method.py:FedDecay", *tiny("--model", "net.py:net"), "--out", "both"]
    assert call(*words).code == 0
    assert call(*words).code == 0
    with Path(name).open("a") as f:
        f.write("edited = True\n")
    for seeds in ("0", "0,1"):
        one_line(call(*words, "--seeds", seeds), f"{name} was edited since both/feddecay-seed0 was begun: choose")
    assert not Path("both/feddecay-seed1").exists()


def test_a_file_edited_while_the_comparison_runs_ends_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("method.py").write_text(METHOD)
    real = queue.execute

    def execute(*arguments: Any) -> None:
        real(*arguments)
        Path("method.py").write_text(METHOD + "edited = True\n")

    monkeypatch.setattr(queue, "execute", execute)
    words = ["compare", "--algorithms", "method.py:FedDecay", "--seeds", "0,1", *TINY, "--out", "both"]
    one_line(call(*words), "method.py was edited since this comparison began: choose another folder")
    assert [p.name for p in Path("both").iterdir()] == ["feddecay-seed0"]


DIVERGES = """from fedsmoo.algorithms import FedAvg
class Bad(FedAvg):
    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w * float("nan"))
"""

OPTION = """from dataclasses import dataclass
from fedsmoo.algorithms import FedAvg
@dataclass(frozen=True)
class Mine(FedAvg):
    decay: float = 0.5
"""


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "in one batch"])
def test_a_run_that_fails_is_named_and_the_others_go_on(
    batch: bool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    if batch:  # as on a GPU
        monkeypatch.setattr(library, "make_device", lambda name: SimpleNamespace(type="cuda"))
    Path("bad.py").write_text(DIVERGES)
    engine = ["--engine", "batched"] if batch else []
    words = ["compare", "--algorithms", "bad.py:Bad,fedavg", "--seeds", "0,1", *tiny(*engine), "--out", "both"]
    for _ in range(2):  # again: the same answer
        answer = call(*words)
        assert answer.code == 1
        lines = [line for line in answer.err.splitlines() if line.startswith("failed: ")]
        assert [line.partition(": round")[0] for line in lines] == ["failed: Bad, seed 0", "failed: Bad, seed 1"]
        assert "no longer finite" in lines[0]
        assert [line.split()[0] for line in answer.out.splitlines()[1:2]] == ["FedAvg"]
        assert answer.out.endswith("failed: bad-seed0, bad-seed1\n")
    assert len(read_run(Path("both/fedavg-seed1")).history) == 2


def test_two_files_with_one_name_are_told_apart(call: Call) -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "m.py").write_text(OPTION)
    words = ["compare", "--algorithms", "a/m.py:Mine,b/m.py:Mine", "--set", "b/m.py:Mine.decay=0.25", *TINY]
    answer = call(*words, "--out", "both")
    assert answer.code == 0, answer.err
    assert [line.partition(")")[0] for line in answer.out.splitlines()[1:3]] == ["Mine (a/m.py", "Mine (b/m.py"]
    configs = [read_run(Path("both", name)).config for name in ("mine-a-m.py-seed0", "mine-b-m.py-seed0")]
    assert [(c.algorithm, c.algorithm_options) for c in configs] == [
        ("a/m.py:Mine", {}), ("b/m.py:Mine", {"decay": 0.25}),
    ]  # fmt: skip
    twice = otherwise(words, "--algorithms", "a/m.py:Mine,./a/m.py:Mine", "--out", "two")
    one_line(call(*twice), "names './a/m.py:Mine' twice")
