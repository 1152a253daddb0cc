"""Grids, and two processes on one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from forked import Forked
from patience import PATIENCE, ended, json_if_there, wait_for

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import Record
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.lease import LEASE, Lease, acquire, is_abandoned, leased, me
from fedsmoo.runs.storage.names import FAILED, MODEL
from fedsmoo.runs.storage.reader import read_run, state
from fedsmoo.sweeps.bases import read_sweep
from fedsmoo.sweeps.grid import expand, run_name
from fedsmoo.sweeps.queue import Worker, lease_batch, work

from .small import twelve

SOURCE = Path(__file__).parents[2] / "src"


def test_lists_make_a_grid_and_the_narrower_setting_wins(tmp_path: Path) -> None:
    sweep = read_sweep(twelve(tmp_path))
    assert len(sweep.configs) == 12
    assert Counter(c.lr for c in sweep.configs) == {0.05: 6, 0.1: 6}
    assert Counter((c.algorithm, c.lr_decay) for c in sweep.configs) == {("fedavg", 0.998): 6, ("fedsmoo", 0.9995): 6}
    assert len({run_name(c) for c in sweep.configs}) == 12


def test_hyper_parameters_go_to_the_methods_that_have_them() -> None:
    table = {
        "hyper": {"beta": [1, 10], "r": 0.2},
        "methods": {"FedAvg": {}, "FedDyn": {}, "FedSMOO": {"r": 0.3}},
        "columns": {"a": {"hyper": {"r": 0.1}}, "b": {"dataset": "digits", "last": {"lr_decay": 0.5}}},
    }
    cells = expand(table, "here").cells
    got = [(c.column, c.method, c.config.algorithm_options, c.config.lr_decay) for c in cells]
    assert got == [
        (column, method, options, decay)
        for column, decay in (("a", 0.998), ("b", 0.5))
        for method, options in (
            ("FedAvg", {}),
            ("FedDyn", {"beta": 1}),
            ("FedDyn", {"beta": 10}),
            ("FedSMOO", {"beta": 1, "r": 0.3}),
            ("FedSMOO", {"beta": 10, "r": 0.3}),
        )
    ]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"lr": []}, "lr is an empty list"),
        ({"learning_rate": 1}, "unknown setting 'learning_rate'"),
        ({"methods": {"FedAvg": {"gamma": 1}}}, "FedAvg: unknown setting 'gamma'"),
        ({"methods": {"FedAvgg": {}}}, "did you mean 'fedavg'"),
        ({"lr": ["high"]}, "lr is 'high', but must be a number"),
        ({"hyper": {"r": [0.1, -1]}}, "r is -1.0, but must be at least 0"),
        ({"algorithm": 3}, "algorithm is 3, but must be text"),
        ({"algorithm": ["fedavg", 3]}, "algorithm is 3, but must be text"),
        ({"algorithm_options": 3}, "here: algorithm_options is 3, but must be a table"),
        ({"methods": 3}, "here: methods is 3, but must be a table"),
        ({"methods": ["FedAvg"]}, r"here: methods is \['FedAvg'\], but must be a table"),
        ({"methods": {"FedAvg": 3}}, "here: methods.FedAvg is 3, but must be a table"),
        ({"columns": {"a": {"hyper": 3}}}, "here: columns.a.hyper is 3, but must be a table"),
        ({"hyper": 3}, "here: hyper is 3, but must be a table"),
    ],
)
def test_a_wrong_grid_is_one_line(table: dict, words: str) -> None:
    with pytest.raises(FedsmooError, match=words):
        expand(table, "here")


def test_a_base_that_is_no_name_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("base = 3\n")
    with pytest.raises(FedsmooError, match="unknown table '3'"):
        read_sweep(tmp_path / "a.toml")


def test_runs_that_differ_in_numbers_share_a_batch(tmp_path: Path) -> None:
    a = Config(engine="batched")
    configs = [a, a.replace(seed=1), a.replace(algorithm="fedavg"), a.replace(lr=0.2), a.replace(batch_size=7)]
    places = {tmp_path / str(k): c for k, c in enumerate(configs)}
    batches = []
    while left := [p for p in places if not (p / LEASE).exists()]:
        batches.append(lease_batch(left, places, pack=4))
    assert [[int(p.name) for p in batch] for batch in batches] == [[0, 1, 3], [2], [4]]
    assert lease_batch(list(places), places, pack=4) == {}  # all of them are taken
    for batch in batches:
        for held in batch.values():
            held.release()
    alone = lease_batch(list(places), places, pack=1)
    assert [p.name for p in alone] == ["0"]
    alone[tmp_path / "0"].release()


def test_a_packed_sweep_resumes_and_agrees_with_single_runs(tmp_path: Path) -> None:
    configs = [c.replace(engine="batched") for c in read_sweep(twelve(tmp_path)).configs]
    rounds = []
    stop = lambda: len(rounds) > 30  # noqa: E731
    work(configs, tmp_path / "packed", Worker(pack=4, watch=lambda c, r: rounds.append(r), stop=stop))
    report = work(configs, tmp_path / "packed", Worker(pack=4, retry=True))
    assert len(report.finished) == 12
    work(configs, tmp_path / "single", Worker())
    for config in configs:
        ours, theirs = (read_run(tmp_path / way / run_name(config)).history for way in ("packed", "single"))
        assert [r.round for r in ours] == list(range(1, 13))
        assert [r.test_loss for r in ours] == pytest.approx([r.test_loss for r in theirs], rel=1e-4)


def test_a_failed_run_is_noted_and_does_not_stop_the_others(tmp_path: Path) -> None:
    good = Config(model="softmax", rounds=3, local_steps=1, clients=6, cohort=2, engine="serial", device="cpu")
    bad = good.replace(lr=1e30, clip=None)
    said = []
    report = work([bad, good], tmp_path, Worker(failed=lambda c, p, why: said.append(why)))
    assert len(report.finished) == 1
    assert "no longer finite" in said[0]
    assert state(tmp_path / run_name(bad)) == "failed"
    assert work([bad, good], tmp_path, Worker(failed=lambda c, p, why: said.append(why))).failed
    assert len(said) == 1  # not tried again unless asked
    work([bad, good], tmp_path, Worker(failed=lambda c, p, why: said.append(why), retry=True))
    assert len(said) == 2
    assert "no longer finite" in json.loads((tmp_path / run_name(bad) / FAILED).read_text())["error"]


def test_a_lease_holds_while_its_owner_lives(tmp_path: Path) -> None:
    first = acquire(tmp_path / "run")
    assert first is not None
    assert acquire(tmp_path / "run") is None
    with pytest.raises(FedsmooError, match="another process is at work"), leased(tmp_path / "run"):
        pass
    first.release()
    again = acquire(tmp_path / "run")
    assert again is not None
    again.release()


def test_a_single_run_writes_nothing_into_a_folder_that_another_leased(tmp_path: Path) -> None:
    tiny = Config(model="softmax", rounds=2, local_steps=1, clients=6, cohort=2, engine="serial", device="cpu")
    with leased(tmp_path / "run"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(FedsmooError, match=r"another process is at work on .*; nothing was changed"):
            fedsmoo.run(tiny, tmp_path / "run")
        assert sorted(tmp_path.rglob("*")) == before
    fedsmoo.run(tiny, tmp_path / "run")  # what a lease leaves behind is no run
    assert state(tmp_path / "run") == "finished"
    again = acquire(tmp_path / "run")  # given back
    assert again is not None
    again.release()


def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / LEASE
    path.write_text(json.dumps({**me(), "pid": child.pid, "born": "1"}))
    assert is_abandoned(path)
    path.write_text(json.dumps({**me(), "born": "1"}))
    assert is_abandoned(path)  # the number was given out again
    for other in ({"host": "elsewhere"}, {"boot": "another"}, {"space": "pid:[1]"}, {"space": None}):
        path.write_text(json.dumps({**me(), "pid": child.pid, **other}))  # where that number means another process
        assert not is_abandoned(path)
        os.utime(path, (time.time() - 300, time.time() - 300))
        assert is_abandoned(path)
    held = acquire(tmp_path / "run")
    assert held is not None
    held.release()


def taken_over(folder: Path) -> Lease:
    """Make a lease look as if its machine had been silent, and take over its run."""
    path = folder / LEASE
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    os.utime(path, (time.time() - 300, time.time() - 300))
    held = acquire(folder)
    assert held is not None
    return held


def test_who_was_only_paused_leaves_the_lease_of_another_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsmoo.runs.storage.lease.BEAT", 0.01)
    first = acquire(tmp_path)
    assert first is not None
    assert first.ours()
    first.done.set()  # no beat, as in a process that is paused
    first.thread.join()
    second = taken_over(tmp_path)
    assert second.ours()
    assert not first.ours()
    first.done.clear()
    first._beat()  # ends by itself
    first.release()
    assert second.ours()
    assert acquire(tmp_path) is None
    second.release()
    assert not (tmp_path / LEASE).exists()
    assert not second.ours()


@pytest.mark.parametrize(("pack", "at"), [(1, 2), (1, 3), (2, 2), (2, 3)])
def test_a_run_that_another_took_over_ends_without_writing(pack: int, at: int, tmp_path: Path) -> None:
    first = Config(model="softmax", rounds=3, local_steps=1, clients=6, cohort=2, engine="batched", device="cpu")
    configs = [first, first.replace(seed=1)][:pack]
    folder = tmp_path / run_name(first)
    others: list[Lease] = []
    notes: list[str] = []

    def watch(config: Config, record: Record) -> None:
        if config.seed == 0 and record.round == at - 1:
            others.append(taken_over(folder))

    report = work(configs, tmp_path, Worker(pack=pack, watch=watch, note=notes.append, wait=False, save_every=0))
    assert len(others) == 1  # and it was not begun again
    assert others[0].ours()
    assert report.left == [folder]
    assert report.finished == [tmp_path / run_name(c) for c in configs[1:]]
    assert [r.round for r in read_run(folder).history] == list(range(1, at))
    assert not (folder / "checkpoint").exists()
    assert notes == [f"{folder.name}: another process took this run over while this one was silent; it ends here"]
    others[0].release()


@pytest.mark.parametrize("at", [2, 3])
def test_a_single_run_that_another_took_over_says_so_and_writes_nothing_more(at: int, tmp_path: Path) -> None:
    config = Config(model="softmax", rounds=3, local_steps=1, clients=6, cohort=2, engine="batched", device="cpu")
    run = Run.begin(config, tmp_path / "run", lease=acquire)
    others: list[Lease] = []

    def watch(record: Record) -> None:
        if record.round == at - 1:
            others.append(taken_over(tmp_path / "run"))

    with pytest.raises(FedsmooError, match="run: another process took this run over"):
        run.go(watch, save_every=0)
    assert [r.round for r in read_run(tmp_path / "run").history] == list(range(1, at))
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert state(tmp_path / "run") == "unfinished"
    others[0].release()


STALLS = """
import sys, time
from pathlib import Path
from fedsmoo.cli import main
from fedsmoo.runs.storage.folder import RunFolder

record, seen = RunFolder.record, []

def stalling(self, line):
    record(self, line)
    seen.append(line)
    if len(seen) == 6:  # in the middle of its first run
        Path(sys.argv[1]).touch()
        time.sleep(3600)

RunFolder.record = stalling
main(sys.argv[2:])
"""


def worker(file: Path, out: Path, *program: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    arguments = [sys.executable, *(program or ("-m", "fedsmoo")), "sweep", str(file), "--out", str(out)]
    return Forked(arguments, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def reported(text: str) -> list[str]:
    return [line.split()[-1] for line in text.splitlines() if line.startswith("[")]


def test_two_processes_share_a_sweep_and_killing_one_loses_nothing(tmp_path: Path) -> None:
    file, out, stalled = twelve(tmp_path), tmp_path / "runs", tmp_path / "stalled"
    configs = read_sweep(file).configs
    one, two = worker(file, out, "-c", STALLS, str(stalled)), worker(file, out)
    with ended(one, two):
        wait_for(stalled.exists, "the first process to be in the middle of a run")
        held = [p.parent for p in out.glob(f"*/{LEASE}") if json_if_there(p).get("pid") == one.pid]
        wait_for(
            lambda: sum(state(out / run_name(c)) == "finished" for c in configs) == 11, "the second to do the rest"
        )
        assert two.poll() is None  # it waits for the last one
        assert [state(p) for p in held] == ["unfinished"]
        one.send_signal(signal.SIGKILL)
        _, said_by_one = one.communicate()
        _, said_by_two = two.communicate(timeout=PATIENCE)
    assert two.returncode == 0, said_by_two
    assert Counter(reported(said_by_one) + reported(said_by_two)) == Counter(run_name(c) for c in configs)  # each once
    assert held[0].name in reported(said_by_two)
    for config in configs:
        folder = out / run_name(config)
        assert state(folder) == "finished"
        assert [r.round for r in read_run(folder).history] == list(range(1, 13))
    again = tmp_path / "again"
    sample = next(c for c in configs if run_name(c) == held[0].name)
    Run.begin(sample, again).go()
    assert (again / MODEL).read_bytes() == (held[0] / MODEL).read_bytes()
    assert not list(out.glob(f"*/{LEASE}"))
