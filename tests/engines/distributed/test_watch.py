"""Who watches whom: silence, leaving, a stop of one's own; and where the documented loopback command listens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE, wait_for

from fedsmoo.core.errors import FedsmooError
from fedsmoo.engines.distributed import watch
from fedsmoo.engines.distributed.watch import Watch, patience

from .launch import Meeting, environment

ROOT = Path(__file__).parents[3]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until it is set."""
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def watched(said: list[str]) -> Watch:
    """Rank 0 of three, which has heard all."""
    found = Watch(0, 3, Meeting().store, 10.0, said.append)
    for rank in range(3):
        found.hear(rank, ["1", "here", f"rank {rank} on h{rank}, process 7"])
    return found


def test_who_is_silent_is_named_and_who_left_is_not(clock: list[float]) -> None:
    mine = watched([])
    clock[0] += 9
    mine.hear(0, ["2", "here", "rank 0 on h0, process 7"])
    mine.hear(1, ["1", "here", "rank 1 on h1, process 7"])  # nothing new
    mine.hear(2, ["2", "left", "rank 2 on h2, process 7"])
    assert mine.silent(10) == {}
    clock[0] += 2
    assert mine.silent(10) == {1: "here"}
    assert mine.named([1]) == "rank 0 of 3: nothing was heard of rank 1 on h1, process 7"
    clock[0] += 20
    assert mine.silent(10) == {0: "here", 1: "here", 2: "left"}


def test_a_store_that_does_not_answer_is_named_instead(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "far.away")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert "the place where ranks meet, far.away:29500, was not heard" in watched([]).named([0, 1, 2])


def judged(mine: Watch, clock: list[float], ticks: list[float]) -> None:
    """Judge after each of some times; others than rank 1 are heard meanwhile."""

    class Ticks:
        def wait(self, seconds: float) -> bool:
            if not ticks:
                return True
            clock[0] += ticks.pop(0)
            for rank in (0, 2):
                mine.hear(rank, [str(clock[0]), "here", ""])
            return False

    mine.closed = Ticks()  # type: ignore[assignment]
    mine.judge()


def test_silence_is_told_once_and_not_after_a_stop_of_ones_own(clock: list[float]) -> None:
    said: list[str] = []
    judged(watched(said), clock, [1.0] * 30)
    assert len(said) == 1
    assert said[0].startswith("rank 0 of 3: nothing was heard of rank 1 on h1, process 7 for 10 s: stopped, or cut off")
    said.clear()
    judged(watched(said), clock, [1.0, 1.0, 500.0, 1.0, 1.0])  # the whole job was stopped, and goes on
    assert said == []
    judged(watched(said), clock, [500.0] + [1.0] * 11)
    assert len(said) == 1


def test_beats_travel_through_the_store() -> None:
    meeting = Meeting()
    said: list[str] = []
    both = [Watch(r, 2, meeting.store, 1000.0, said.append) for r in (0, 1)]
    for one in both:
        one.pause = 0.01
        one.start()
    wait_for(lambda: all(len(one.said) == 2 for one in both), "beats")
    assert both[0].said[1][2] == both[1].who
    both[1].close()
    wait_for(lambda: both[0].said[1][1] == "left", "a farewell")
    both[0].close()
    assert said == []


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_time_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSMOO_RANK_TIMEOUT", text)
    with pytest.raises(
        FedsmooError, match=f"FEDSMOO_RANK_TIMEOUT is '{text}', but must be a number of seconds above 0"
    ):
        patience()
    monkeypatch.delenv("FEDSMOO_RANK_TIMEOUT")
    assert patience() == 90


def tree(root: int) -> list[int]:
    """A process and those below it."""
    out = [root]
    for pid in out:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                out += map(int, children.read_text().split())
            except OSError:
                continue
    return out


def sockets(pids: list[int]) -> Iterator[str]:
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(file))
            except OSError:
                continue
            if found:
                yield found[1]


def listening(pids: list[int]) -> list[str]:
    """The addresses at which processes listen, in hexadecimal."""
    ours = set(sockets(pids))
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [words[1].partition(":")[0] for words in lines if words[3] == "0A" and words[9] in ours]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not show who listens")
def test_the_documented_loopback_command_listens_on_loopback_only(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text()
    found = re.search(r"loopback interface.*?```\n(.*?)```", page, re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", " ").replace("$(mktemp -u)", str(tmp_path / "meeting")))
    settings = dict(word.split("=", 1) for word in words if re.fullmatch(r"[A-Z_]+=.*", word))
    at = words.index("torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", *words[at + 1 :], "--out", str(tmp_path / "run")]
    command[command.index("--rounds") + 1] = "1000000"
    job = subprocess.Popen(command, env=environment(**settings), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    pids: list[int] = []
    try:

        def at_work() -> bool:
            pids[:] = tree(job.pid)
            assert job.poll() is None, job.stderr and job.stderr.read()
            return (tmp_path / "run" / "metrics.jsonl").exists()

        wait_for(at_work, "the first round", PATIENCE)
        places = listening(pids)
    finally:
        for pid in reversed(pids):
            if pid in tree(job.pid):
                os.kill(pid, 9)
        job.kill()
        job.communicate()
    assert len(places) >= 3  # both ranks, and where they met
    assert set(places) == {"0100007F"}
