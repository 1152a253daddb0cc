"""Checkpoints that are damaged, foreign, unwritable or made under other settings; their cost; Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import forked
import pytest
import torch
from patience import PATIENCE, ended, read_if_there, wait_for

from fedsmoo.cli import main
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.data.sources import load
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.runs import build as resolve
from fedsmoo.runs.config import Config
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.checkpoint import (
    Checkpoints,
    Mark,
    Pace,
    manifests_in,
    newest,
    read_manifest,
    seal,
    write_tensors,
)
from fedsmoo.runs.storage.names import METRICS, MODEL
from fedsmoo.runs.storage.reader import read_config, read_run

SMALL = Config(
    algorithm="fedsmoo", model="softmax", clients=8, cohort=3, rounds=9, local_steps=1, batch_size=8,
    partition="iid", engine="serial", device="cpu", clip=None,
)  # fmt: skip


def stopped(folder: Path, after: int = 6, every: int = 2) -> Path:
    """A run that was stopped after some rounds, with checkpoints of rounds 4 and 6."""
    run = Run.begin(SMALL, folder)
    seen: list[int] = []
    run.go(callback=lambda r: seen.append(r.round), stop=lambda: len(seen) >= after, save_every=every)
    return folder


def finished(folder: Path) -> bytes:
    Run.begin(SMALL, folder).go()
    return (folder / MODEL).read_bytes()


def rows(*clients: int, value: float) -> Vectors:
    return Vectors(c=torch.full((len(clients), 3), value))


def test_a_stopped_run_keeps_two_checkpoints_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    assert [int(p.stem) for p in manifests_in(folder / "checkpoint")] == [6, 4]
    run = reopen(folder)
    assert len(run.simulation.history) == 6
    run.go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")
    assert [r.round for r in read_run(folder).history] == list(range(1, 10))


def test_the_page_names_every_file_of_a_run(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    made = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "analysis" not in p.parts}
    text = (Path(__file__).parents[3] / "docs" / "resume.md").read_text()
    listed = {line.split()[0].removeprefix("runs/a/") for line in text.splitlines() if line.startswith("runs/a/")}
    assert {re.sub("00000[46]", "000120", name) for name in made} <= listed


def test_a_stopped_run_leaves_no_file_open(tmp_path: Path) -> None:
    """A file that is left open is closed by the garbage collector, with a warning in somebody else's test."""
    run = Run.begin(SMALL, tmp_path / "run")
    run.go(stop=lambda: True)
    held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not [name for name in held if str(run.folder.path) in name]


@pytest.mark.parametrize("table", ["device", "host", "disk"])
def test_client_state_is_saved_wherever_it_lives(tmp_path: Path, table: str) -> None:
    config, seen = SMALL.replace(table=table, engine="batched"), []
    Run.begin(config, tmp_path / "a").go(callback=seen.append, stop=lambda: len(seen) == 5, save_every=2)
    reopen(tmp_path / "a").go(save_every=2)
    Run.begin(config.replace(table="device"), tmp_path / "b").go()
    left, right = (dict(newest(tmp_path / n / "checkpoint")[0].rows()) for n in "ab")
    assert left.keys() == right.keys()
    assert all(torch.equal(left[c][n], right[c][n]) for c in left for n in ("mu", "lam"))
    assert (tmp_path / "a" / MODEL).read_bytes() == (tmp_path / "b" / MODEL).read_bytes()


def test_metrics_after_the_checkpoint_are_cut(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    with (folder / METRICS).open("ab") as f:
        f.write(b'{"round": 7, "tor')
    reopen(folder).go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")
    assert len(read_run(folder).history) == 9


@pytest.mark.parametrize("what", ["server", "rows", "manifest", "missing"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, what: str) -> None:
    folder = stopped(tmp_path / "a")
    victim = folder / "checkpoint" / {"manifest": "000006.json"}.get(what, f"000006-{what}.safetensors")
    if what == "missing":
        (folder / "checkpoint" / "000006-server.safetensors").unlink()
    else:
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1  # one bit
        victim.write_bytes(data)
    run = reopen(folder)
    assert len(run.simulation.history) == 4
    assert "round 6 cannot be used" in run.notes[0]
    run.go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")


def test_when_nothing_is_sound_the_folder_is_left_alone(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    for path in (folder / "checkpoint").iterdir():
        path.write_bytes(b"not a checkpoint")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(FedsmooError, match=r"no checkpoint of .* can be used; nothing was changed"):
        reopen(folder)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_changed_settings_are_named(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("lr = 0.1\n", "lr = 0.2\n"))
    with pytest.raises(FedsmooError, match=r"other settings \(lr was 0.1, is 0.2\)"):
        reopen(folder)
    (folder / "config.toml").write_text(text)
    assert len(reopen(folder).simulation.history) == 6


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    folder, other = stopped(tmp_path / "a"), tmp_path / "b"
    Run.begin(SMALL.replace(seed=1), other).go(stop=lambda: True, save_every=1)
    for path in (folder / "checkpoint").iterdir():
        path.unlink()
    for path in (other / "checkpoint").iterdir():
        path.rename(folder / "checkpoint" / path.name)
    before = (folder / METRICS).read_bytes()
    with pytest.raises(FedsmooError, match="seed was 1, is 0"):
        reopen(folder)
    assert (folder / METRICS).read_bytes() == before
    (folder / METRICS).write_bytes((other / METRICS).read_bytes())
    with pytest.raises(FedsmooError, match="seed was 1, is 0"):
        reopen(folder)


@pytest.mark.parametrize("what", ["labels", "division"])
def test_a_resume_on_other_data_or_another_division_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped(tmp_path / "a")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    if what == "labels":
        other = replace(load("digits"), y_train=load("digits").y_train.roll(1))
        monkeypatch.setattr(resolve, "load_data", lambda *_: other)
    else:
        made = resolve.make_clients
        monkeypatch.setattr(resolve, "make_clients", lambda *given: made(*given)[::-1])
    with pytest.raises(FedsmooError, match="the data or its division among clients is not what"):
        reopen(folder)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def cut(whole: bytes, how: str) -> bytes | None:
    lines = whole.splitlines(keepends=True)
    changed = [*lines[:1], lines[1].replace(b'"round": 2', b'"round": 8'), *lines[2:]]
    return {"two rounds": b"".join(lines[:2]), "torn": whole[: len(lines[0]) + 9], "empty": b"", "gone": None,
            "changed": b"".join(changed)}[how]  # fmt: skip


@pytest.mark.parametrize("how", ["two rounds", "torn", "empty", "gone", "changed"])
def test_metrics_that_were_lost_are_put_back_from_the_checkpoint(tmp_path: Path, how: str) -> None:
    folder = stopped(tmp_path / "a")
    whole = (folder / METRICS).read_bytes()
    (folder / METRICS).unlink()
    if (left := cut(whole, how)) is not None:
        (folder / METRICS).write_bytes(left)
    run = reopen(folder)
    assert (folder / METRICS).read_bytes() == whole
    assert len(run.simulation.history) == 6
    assert ["was cut or changed: its rounds are taken from the checkpoint's copy" in n for n in run.notes] == [True]
    aside = folder / f"{METRICS}.changed"
    assert (aside.read_bytes() if aside.exists() else None) == (left if how == "changed" else None)
    run.go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")
    assert [r.round for r in read_run(folder).history] == list(range(1, 10))


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_says_so(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a", after=2)
    shutil.rmtree(folder / "checkpoint")
    run = reopen(folder)
    assert run.notes == ["no checkpoint was written yet: the run starts again at its first round"]
    assert run.simulation.history == []


def test_metrics_that_nobody_has_are_refused_with_advice(tmp_path: Path) -> None:
    """Checkpoints of before held no copy."""
    folder = stopped(tmp_path / "a")
    for path in manifests_in(folder / "checkpoint"):
        manifest = read_manifest(path)
        del manifest["files"][f"{path.stem}-metrics.jsonl"]
        path.write_bytes(seal(manifest))
    assert len(reopen(folder).simulation.history) == 6  # the file alone is enough
    (folder / METRICS).write_bytes(b"")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(FedsmooError, match="not as it was when the checkpoint was written") as caught:
        reopen(folder)
    assert f"'fedsmoo run {folder / 'config.toml'} --out NEW' starts the same run again" in str(caught.value)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_full_disk_is_one_line_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    code = f"""
import resource, signal, sys
from pathlib import Path
from fedsmoo.runs.run import Run
from fedsmoo.runs.config import Config
run = Run.begin(Config(**{SMALL.to_dict()!r}), Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def limit(record):
    if record.round == 6:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
run.go(callback=limit, save_every=2)
"""
    folder = tmp_path / "a"
    source = str(Path(__file__).parents[3] / "src")
    done = forked.run([sys.executable, "-c", code, str(folder)], env={**os.environ, "PYTHONPATH": source})
    assert "cannot save the checkpoint of round 6" in done.stderr
    assert "the one of round 4 is untouched" in done.stderr
    assert not list((folder / "checkpoint").glob("*.part"))
    reopen(folder).go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")


def shards(folder: Path, number: int) -> dict[str, str]:
    return read_manifest(folder / "checkpoint" / f"{number:06d}.json")["rows"]


def test_only_changed_rows_are_written_and_thin_shards_are_gathered(tmp_path: Path) -> None:
    table, server = ClientTable(("c",)), Vectors(w=torch.zeros(3))
    store = Checkpoints(tmp_path / "checkpoint", {})

    def save(number: int, *clients: int) -> dict[int, int]:
        """Change rows, save, and return in which save's shard each row lies."""
        table.write(clients, rows(*clients, value=float(number)))
        store.save(number, server, table, Mark(0, ""))
        return {int(c): int(s[:6]) for c, s in shards(tmp_path, number).items()}

    assert save(1, 0, 1, 2, 3) == dict.fromkeys(range(4), 1)
    assert save(2, 0) == dict.fromkeys(range(4), 2), "the other generation has every row, too"
    assert save(3, 3) == {0: 3, 1: 1, 2: 1, 3: 3}, "what changed since save 1"
    assert save(4) == {0: 2, 1: 2, 2: 2, 3: 4}, "what changed since save 2"
    assert save(5, 1) == {0: 3, 1: 5, 2: 5, 3: 3}, "one live row of four in shard 1: it is gathered"
    assert save(6) == {0: 2, 1: 6, 2: 2, 3: 4}
    assert save(7) == {0: 3, 1: 5, 2: 5, 3: 3}, "nothing changed: no rows are written"
    names = {p.name[:6] for p in (tmp_path / "checkpoint").glob("*-rows*")}
    assert names == {f"{n:06d}" for n in (2, 3, 4, 5, 6)}, "shard 1 is of no use to the last two"
    saved, problems = newest(tmp_path / "checkpoint")
    assert problems == []
    assert {c: row["c"][0].item() for c, row in saved.rows()} == {0: 2.0, 1: 5.0, 2: 1.0, 3: 3.0}


def test_a_tensor_that_is_part_of_another_is_saved_alone(tmp_path: Path) -> None:
    from fedsmoo.runs.storage.checkpoint import on_host

    whole = torch.arange(6.0).view(2, 3)
    write_tensors(tmp_path / "x", {"a": on_host(whole[0]), "b": on_host(whole[1])})
    assert (tmp_path / "x").stat().st_size < 300


def test_a_vector_under_two_names_is_saved_and_restored(tmp_path: Path) -> None:
    one, table = torch.arange(3.0), ClientTable(("c", "d"))
    table.rows[5] = table.rows[6] = {"c": one, "d": one}
    table.changed.update((5, 6))
    Checkpoints(tmp_path / "checkpoint", {}).save(1, Vectors(w=one, anchor=one, third=one + 1), table, Mark(0, ""))
    saved = newest(tmp_path / "checkpoint")[0]
    server = {n: v.tolist() for n, v in saved.server().items()}
    assert server == {"w": [0.0, 1.0, 2.0], "anchor": [0.0, 1.0, 2.0], "third": [1.0, 2.0, 3.0]}
    clients = {c: {n: v.tolist() for n, v in row.items()} for c, row in saved.rows()}
    assert clients == {c: {"c": [0.0, 1.0, 2.0], "d": [0.0, 1.0, 2.0]} for c in (5, 6)}


KEEPER = """
from dataclasses import dataclass
from fedsmoo import FedAvg
@dataclass(frozen=True)
class Keeper(FedAvg):
    server = ("anchor",)
    def aggregate(self, srv, mean, rnd):
        new = super().aggregate(srv, mean, rnd)
        return new.replace(anchor=new.w)
"""


def test_a_method_whose_server_keeps_the_model_under_a_second_name_resumes(tmp_path: Path) -> None:
    (tmp_path / "keeper.py").write_text(KEEPER)
    config = SMALL.replace(algorithm=f"{tmp_path / 'keeper.py'}:Keeper", rounds=4)
    Run.begin(config, tmp_path / "a").go(stop=lambda: True)
    reopen(tmp_path / "a").go()
    Run.begin(config, tmp_path / "b").go()
    assert (tmp_path / "a" / MODEL).read_bytes() == (tmp_path / "b" / MODEL).read_bytes()


def test_the_default_pace_keeps_saving_under_a_twentieth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for seconds_a_round, cost in [(0.001, 0.02), (0.3, 0.5), (20.0, 6.0)]:
        now[0], spent, pace = 0.0, 0.0, Pace(since=0.0)
        for number in range(1, 20_000):
            now[0] += seconds_a_round
            if pace.due(number, 10**6):
                began = now[0]
                now[0] += cost
                spent += cost
                pace.learn(began, 10**6)
        assert 0 < spent / now[0] < 0.05


def test_what_a_run_saves_by_default_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own: a round takes a second, a save two, and in between nothing takes time."""
    run, now, saves = Run.begin(SMALL.replace(rounds=200), tmp_path / "a"), [0.0], []
    inner, cost = run.checkpoints.save, 2.0
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr("fedsmoo.runs.run.Pace", partial(Pace, since=0.0))

    def slow(*args) -> None:
        inner(*args)
        now[0] += cost
        saves.append(args[0])

    def one_second(record) -> None:
        now[0] += 1.0

    run.checkpoints.save = slow  # type: ignore[method-assign]
    run.go(one_second, keep=False)
    assert len(saves) >= 3
    assert cost * len(saves) <= 0.05 * now[0] + cost  # the first comes before it is known what a save costs


def test_none_survives_the_config_file(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    assert read_config(folder) == SMALL


def test_rounds_that_were_finished_cannot_be_resumed(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    with pytest.raises(FedsmooError, match="has finished"):
        reopen(tmp_path / "a")


def test_a_run_that_keeps_nothing_leaves_no_checkpoint(tmp_path: Path) -> None:
    Run.begin(SMALL, tmp_path / "a").go(save_every=2, keep=False)
    assert not (tmp_path / "a" / "checkpoint").exists()


# ``fedsmoo`` whose second round does not end until it is stopped.
STALLS = """
import sys, time
from fedsmoo.cli import main
from fedsmoo.runs.simulation import Simulation

advance = Simulation.advance

def stalling(self):
    if len(self.history) == 1:
        time.sleep(3600)
    return advance(self)

Simulation.advance = stalling
main(sys.argv[1:])
"""


def command(*arguments: str, program: tuple[str, ...] = ("-m", "fedsmoo")) -> subprocess.Popen[str]:
    source = str(Path(__file__).parents[3] / "src")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    return forked.Forked([sys.executable, *program, *arguments], env=env, stderr=subprocess.PIPE, text=True)


def wait_for_rounds(process: subprocess.Popen[str], folder: Path, rounds: int) -> None:
    def there() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return read_if_there(folder / METRICS).count("\n") >= rounds

    wait_for(there, f"{rounds} rounds in {folder}")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    process = command("run", "--model", "softmax", "--rounds", "1000000", "--local-steps", "1", "--engine", "serial",
                      "--cohort", "2", "--out", str(folder))  # fmt: skip
    with ended(process):
        wait_for_rounds(process, folder, 3)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    done = len(read_run(folder).history)
    assert f"saved after round {done} of 1000000; go on with: fedsmoo resume {folder}" in error
    assert newest(folder / "checkpoint")[0].round == done
    manifest = json.loads((folder / "checkpoint" / f"{done:06d}.json").read_text().rpartition("}")[0] + "}")
    assert manifest["metrics"]["bytes"] == (folder / METRICS).stat().st_size


def test_ctrl_c_twice_stops_at_once_and_the_run_resumes(tmp_path: Path) -> None:
    folder, whole = tmp_path / "a", tmp_path / "b"
    short = ["--model", "softmax", "--rounds", "3", "--local-steps", "2", "--engine", "serial", "--cohort", "2"]
    process = command("run", *short, "--out", str(folder), "--save-every", "1", program=("-c", STALLS))
    with ended(process):
        wait_for_rounds(process, folder, 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "press Ctrl-C again" not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"stopped at once; go on from the last checkpoint with: fedsmoo resume {folder}" in error
    assert len(read_run(folder).history) == 1
    with pytest.raises(SystemExit, match="0"):
        main(["resume", str(folder)])
    Run.begin(read_config(folder), whole).go()
    assert (folder / MODEL).read_bytes() == (whole / MODEL).read_bytes()
