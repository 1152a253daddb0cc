"""Workers that were paused and taken over harm nothing; claims that name nobody block nobody."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.runs.record import Record
from fedsmoo.runs.storage import lease
from fedsmoo.runs.storage.checkpoint import Checkpoints, Mark, manifests_in, read_manifest
from fedsmoo.runs.storage.fence import Fence, fenced_by, partial_name
from fedsmoo.runs.storage.folder import RunFolder, write_label
from fedsmoo.runs.storage.lease import LEASE, LOCK, Lease, TakenOver, acquire, leased, locked, me
from fedsmoo.runs.storage.reader import read_label

from .paused import content, operations, pause, silence

POINTS = 12  # of a hundred or so for each way to end; benchmarks/drills/pauses.py pauses at all of them


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "removed"])
def test_a_worker_paused_at_an_operation_and_taken_over_harms_nothing(keep: bool, tmp_path: Path) -> None:
    """With checkpoints that are kept at the end, and with such that are removed."""
    count = operations(tmp_path / "whole", keep)
    assert count > 80
    sample = random.Random(0).sample(range(4, count), POINTS)
    outcomes = [pause(tmp_path / str(n), n, tmp_path / "whole", keep) for n in sample]
    assert {o.at: o.harm for o in outcomes if o.harm} == {}
    assert all(o.at for o in outcomes)
    assert sum(o.taken for o in outcomes) >= 3  # the others were within the lock, where nobody can take over


def abandoned(folder: Path) -> tuple[Lease, Lease]:
    """Return the lease of a worker that was silent for too long, and that of who took over."""
    first = acquire(folder)
    assert first is not None
    silence(folder)
    second = acquire(folder)
    assert second is not None
    return first, second


def test_every_owner_counts_the_epoch_up_and_checkpoints_tell_it(tmp_path: Path) -> None:
    for epoch in (1, 2):
        with leased(tmp_path) as held:
            assert held.epoch == epoch
            assert json.loads((tmp_path / LEASE).read_text())["epoch"] == epoch
    first, second = abandoned(tmp_path)
    assert (first.epoch, second.epoch) == (3, 4)
    first.release()
    second.release()
    (tmp_path / LOCK).write_bytes(b"")  # by fedsmoo of before
    with leased(tmp_path) as held, fenced_by(held):
        assert held.epoch == 1
        save(Checkpoints(tmp_path / "checkpoint", {}), 1)
    assert read_manifest(tmp_path / "checkpoint" / "000001.json")["epoch"] == 1
    (tmp_path / LOCK).unlink()
    with leased(tmp_path) as held:
        assert held.epoch == 2


def save(store: Checkpoints, number: int) -> None:
    store.save(number, Vectors(w=torch.full((3,), float(number))), ClientTable(()), Mark(0, ""), b"lines\n")


@pytest.mark.parametrize(
    "act",
    [
        lambda store: save(store, 4),
        lambda store: store.remove(),
    ],
    ids=["save", "remove"],
)
def test_a_stale_worker_cannot_touch_checkpoints(act: Callable[[Checkpoints], None], tmp_path: Path) -> None:
    first, second = abandoned(tmp_path)
    store = Checkpoints(tmp_path / "checkpoint", {})
    with fenced_by(second):
        for number in (1, 2, 3):
            save(store, number)
    before = content(tmp_path)
    with fenced_by(first), pytest.raises(TakenOver, match="another process took this run over"):
        act(store)
    assert content(tmp_path) == before
    first.release()
    second.release()


def test_a_stale_worker_appends_no_line_of_metrics(tmp_path: Path) -> None:
    folder, row = RunFolder(tmp_path / "run", ""), Record(1, 0.5, 1.0, 1.0, 1.0, 0.1, [0], 8, 8, 0.1, 0.1)
    first, second = abandoned(tmp_path / "run")
    with fenced_by(second):
        folder.record(row)
    before = content(tmp_path)
    with fenced_by(first), pytest.raises(TakenOver):
        folder.record(row)
    assert content(tmp_path) == before
    assert len(before["run/metrics.jsonl"].splitlines()) == 1
    first.release()
    second.release()


def test_two_owners_never_write_under_the_same_name(tmp_path: Path) -> None:
    first, second = abandoned(tmp_path)
    names = set[str]()
    for owner in (first, second):
        with fenced_by(owner):
            names.add(partial_name(tmp_path / "model").name)
        owner.release()
    assert names == {"model.1.part", "model.2.part"}


class NoLock(Fence):
    """An early owner on a file system whose locks do not hold."""

    epoch = 1

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()


def test_checkpoints_of_a_later_owner_are_never_deleted(tmp_path: Path) -> None:
    early, late = Checkpoints(tmp_path, {}), Checkpoints(tmp_path, {})
    with fenced_by(NoLock()):
        save(early, 1)
    later = NoLock()
    later.epoch = 2
    with fenced_by(later):
        save(late, 5)
        save(late, 6)
    written = {n: c for n, c in content(tmp_path).items() if n[:6] in ("000005", "000006")}
    with fenced_by(NoLock()):
        for number in (2, 3, 4):
            save(early, number)
        early.remove()
    assert {p.name for p in manifests_in(tmp_path)} >= {"000005.json", "000006.json"}
    assert written.items() <= content(tmp_path).items()


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


HUGE = 2**31, 2**63, 2**200, 1e300
WRONG: list[Any] = [0, -1, *HUGE, "12", "x", None, True, [1], {}, float("nan")]
ODD = [json.dumps({**me(), "pid": pid}) for pid in WRONG]
ODD += ["", "{", "[]", "null", "7", "\udc80", "[" * 50_000, " " * 70_000, '{"token": "x"}', json.dumps(me())[:40]]


@pytest.mark.parametrize("text", ODD, ids=[str(i) for i in range(len(ODD))])
def test_a_claim_that_names_no_process_blocks_for_a_moment_only(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "GRACE", 1000.0)  # a moment that no busy machine outlasts
    (tmp_path / LEASE).write_text(text, errors="surrogateescape")
    assert acquire(tmp_path) is None  # fedsmoo of before may be writing it
    for seconds in (lease.GRACE + 1, -1e6):
        (tmp_path / LEASE).write_text(text, errors="surrogateescape")
        age(tmp_path / LEASE, seconds)
        assert lease.is_abandoned(tmp_path / LEASE)
    age(tmp_path / LEASE, lease.GRACE + 1)
    with leased(tmp_path) as held:
        assert held.ours()


@pytest.mark.parametrize("make", [os.mkfifo, lambda p: p.symlink_to("/dev/zero")], ids=["pipe", "link"])
def test_a_claim_that_is_no_file_neither_hangs_nor_blocks(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "GRACE", -1.0)
    make(tmp_path / LEASE)
    with leased(tmp_path) as held:
        assert held.ours()


def test_a_claim_of_another_machine_from_the_future_is_watched_and_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.05)
    monkeypatch.setattr(lease, "GRACE", 0.0)
    claim = tmp_path / LEASE
    claim.write_text(json.dumps({**me(), "host": "elsewhere", "token": "t"}))
    age(claim, -lease.SKEW / 2)  # clocks differ that much
    assert acquire(tmp_path) is None
    age(claim, -3600)
    ahead = iter(range(3600, 9999))
    monkeypatch.setattr(lease.time, "sleep", lambda _: age(claim, -next(ahead)))  # its owner lives: its clock is wrong
    assert acquire(tmp_path) is None
    monkeypatch.setattr(lease.time, "sleep", lambda _: None)
    with leased(tmp_path) as held:
        assert held.ours()


def test_a_claim_from_before_this_machine_was_started_is_dead_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, mine = tmp_path / LEASE, {**me(), "token": "t"}
    monkeypatch.setattr(lease, "boot_time", lambda: time.time() - 20)
    claims = {
        "after a power cut": ({"boot": "earlier"}, 30, True),
        "a machine of the same name, at work": ({"boot": "its own"}, 3, False),
        "another machine, silent for a moment": ({"boot": "its own", "host": "elsewhere"}, 30, False),
        "a container of this machine": ({"space": "its own"}, 30, False),
        "a machine that does not say": ({"boot": None}, 30, False),
    }
    for what, (other, seconds, dead) in claims.items():
        claim.write_text(json.dumps({**mine, **other}))
        age(claim, seconds)
        assert lease.is_abandoned(claim) is dead, what
    monkeypatch.setattr(lease, "boot_time", lambda: None)
    claim.write_text(json.dumps({**mine, "boot": "earlier"}))
    age(claim, 30)
    assert not lease.is_abandoned(claim)


def test_when_this_machine_was_started_is_known() -> None:
    line = next(x for x in Path("/proc/stat").read_text().splitlines() if x.startswith("btime"))
    assert abs(lease.boot_time() - int(line.split()[1])) < 2


def test_a_stale_worker_leaves_the_label_alone(tmp_path: Path) -> None:
    first, second = abandoned(tmp_path)
    with fenced_by(second):
        write_label(tmp_path, "New")
    with fenced_by(first), pytest.raises(TakenOver):
        write_label(tmp_path, "Old")
    assert read_label(tmp_path) == "New"
    first.release()
    second.release()


def test_a_claim_of_before_that_has_no_epoch_holds_and_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LEASE).write_text(json.dumps({**me(), "token": "t"}))
    assert acquire(tmp_path) is None
    (tmp_path / LEASE).write_text(json.dumps({**me(), "born": "1", "token": "t"}))
    with leased(tmp_path) as held:
        assert held.epoch == 1


@pytest.mark.parametrize("operation", ["write_text", "link", "unlink"])
def test_a_kill_while_a_claim_is_made_leaves_a_folder_that_is_free_at_once(operation: str, tmp_path: Path) -> None:
    """In a forked child, killed before or after each of the steps; ``unlink`` comes when the claim is there."""
    pid = os.fork()
    if pid == 0:
        owner = os if operation == "link" else Path
        inner, calls = getattr(owner, operation), []

        def killed(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if operation != "unlink":
                if operation == "write_text":
                    inner(args[0], args[1][:20])
                os._exit(9)
            inner(*args, **kwargs)
            if len(calls) == 2:
                os._exit(9)

        setattr(owner, operation, killed)
        acquire(tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    with leased(tmp_path) as held:
        assert held.ours()
    assert list(tmp_path.glob("*.part")) == []


def test_what_a_killed_worker_had_not_written_to_its_end_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "analysis").mkdir()
    left = ["model.safetensors.3.part", "summary.json.part", "checkpoint/000004.json.3.part", ".claim.ab.part"]
    left += ["analysis/partition.json.3.part"]
    for name in [*left, ".label.txt.7.part", "notes.txt"]:
        (tmp_path / name).touch()
    with leased(tmp_path):
        assert content(tmp_path).keys() == {"notes.txt"}


def test_a_claim_is_whole_whenever_it_is_seen(tmp_path: Path) -> None:
    seen, done = set[bool](), threading.Event()

    def watch() -> None:
        while not done.is_set():
            try:
                seen.add("token" in json.loads((tmp_path / LEASE).read_bytes()))
            except FileNotFoundError:
                continue
            except ValueError:
                seen.add(False)

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(30):
        with leased(tmp_path):
            pass
    done.set()
    thread.join()
    assert seen <= {True}


def test_a_folder_whose_owner_was_paused_while_it_wrote_is_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 0.02)
    first = acquire(tmp_path)
    assert first is not None
    silence(tmp_path)
    with locked(tmp_path):
        assert acquire(tmp_path) is None
        with pytest.raises(FedsmooError, match="another process is at work"), leased(tmp_path):
            pass
    with leased(tmp_path) as second:
        assert not first.ours()
        with pytest.raises(TakenOver), first.held():
            pytest.fail("not the owner")
        with second.held():
            pass
    first.release()
