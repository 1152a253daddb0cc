"""Which configs are the same run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedsmoo.runs.config import Config
from fedsmoo.runs.origin import hashes
from fedsmoo.runs.origin.identity import config_of, differences, identity
from fedsmoo.sweeps.grid import expand, run_name
from fedsmoo.sweeps.results import is_current_result

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize(
    "same",
    [
        {"device": "cuda:1"},
        {"engine": "serial"},
        {"target": 0.5},
        {"local_epochs": 5},
        {"partition": "dirichlet-0.1"},
        {"algorithm_options": {"beta": 10}},
        {"algorithm": "FedSMOO"},
        {"table": "host"},
    ],
)
def test_what_does_not_change_a_run(same: dict) -> None:
    assert identity(Config(**same)) == identity(Config())
    assert run_name(Config(**same)) == run_name(Config())


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"lr": 0.2},
        {"local_steps": 5},
        {"partition": "dirichlet-0.6"},
        {"u": 0.6},
        {"algorithm_options": {"beta": 1}},
        {"algorithm": "feddyn"},
        {"clip": None},
        {"dtype": "float64"},
        {"model_options": {"hidden": 32}},
        {"precision": "bf16"},
    ],
)
def test_what_makes_another_run(other: dict) -> None:
    assert identity(Config(**other)) != identity(Config())
    assert run_name(Config(**other)) != run_name(Config())


def test_a_partition_means_the_same_however_it_is_written() -> None:
    assert identity(Config(partition="pathological", c=6)) == identity(Config(partition="pathological-6"))
    assert identity(Config(partition="pathological-6", u=0.7)) == identity(Config(partition="pathological-6"))


def test_differences_are_in_words() -> None:
    assert differences(Config(), Config(lr=0.2)) == ["lr was 0.1, is 0.2"]


def test_results_keep_their_names_wherever_the_data_lay() -> None:
    files = [p for p in RESULTS.glob("*.json") if is_current_result(json.loads(p.read_text()))]
    assert len(files) >= 15
    for path in files:
        config = config_of(json.loads(path.read_text())["config"])
        assert run_name(config) == path.stem
        assert run_name(config.replace(data="somewhere.npz")) == path.stem


def arrays(path: Path, seed: int) -> str:
    g = np.random.default_rng(seed)
    x = g.integers(0, 255, (20, 4, 4, 1)).astype(np.uint8)
    np.savez(path, x_train=x, y_train=np.arange(20) % 2, x_test=x, y_test=np.arange(20) % 2)
    return str(path)


def test_other_data_under_a_name_of_ones_own_is_another_run(tmp_path: Path) -> None:
    a, b = (arrays(tmp_path / f"{n}.npz", k) for k, n in enumerate("ab"))
    sweep = expand({"algorithm": "fedavg", "dataset": "mine", "data": [a, b]}, "here")
    assert len(sweep.configs) == 2
    config = sweep.configs[0]
    (tmp_path / "moved").mkdir()
    shutil.copy(a, tmp_path / "moved" / "mine.npz")
    for place in ("moved", "moved/mine.npz"):  # the same bytes elsewhere, as a file or in a folder
        assert identity(config.replace(data=str(tmp_path / place))) == identity(config)
    before = identity(config)
    arrays(Path(a), 2)
    assert identity(config) != before
    assert differences(config, sweep.configs[1])[0].startswith("data_content was ")
    assert identity(config.replace(data=str(tmp_path / "absent"))) != before


def test_a_split_file_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    for name, text in (("a.json", "x = 1"), ("b.json", "x = 1"), ("c.json", "x = 2")):
        (tmp_path / name).write_text(text)
    a, b, c, none = (Config(split=str(tmp_path / f"{n}.json")) for n in ("a", "b", "c", "absent"))
    assert identity(a) == identity(b)
    assert run_name(a) == run_name(b)
    assert len({identity(config) for config in (a, c, none, Config())}) == 4


def test_data_in_the_cache_folder_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path))
    arrays(tmp_path / "mine.npz", 0)
    before = identity(Config(dataset="mine"))
    arrays(tmp_path / "mine.npz", 1)
    assert identity(Config(dataset="mine")) != before


def test_a_folder_of_images_counts_by_its_images(tmp_path: Path) -> None:
    files = [tmp_path / "train" / c / "1.png" for c in "ab"] + [tmp_path / "test" / "a" / "1.png"]
    for k, path in enumerate(files):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes([k] * 9))
    config = Config(dataset="mine", data=str(tmp_path))
    before = identity(config)
    (tmp_path / "README").write_text("not read by a run")
    assert identity(config) == before
    files[0].write_bytes(b"of another")
    changed = identity(config)
    files[1].rename(files[1].with_name("2.png"))
    assert len({before, changed, identity(config)}) == 3


@pytest.mark.parametrize(
    ("file", "setting"),
    [("mine.py", {"algorithm": "mine.py:M"}), ("mine.py", {"model": "mine.py:net"}), ("a.json", {"split": "a.json"}),
     ("play.txt", {"dataset": "text:play.txt"})],
)  # fmt: skip
def test_an_edited_file_is_another_run(
    file: str, setting: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    for text in ("x = 1", "x = 2", "x = 1"):
        Path(file).write_text(text)
        seen.append(identity(Config(**setting)))
    assert seen[0] == seen[2] != seen[1]


class Clock:
    """The time as a module sees it; every look at it may take a while, as on a busy machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
        self.now, self.step = 1e9, step
        monkeypatch.setattr(
            hashes, "time", SimpleNamespace(monotonic=self.look, time_ns=lambda: int(self.look() * 1e9))
        )

    def look(self) -> float:
        self.now += self.step
        return self.now


@pytest.mark.parametrize("step", [0.0, 10.0])
def test_a_file_is_read_again_only_when_it_changed(
    step: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, clock = [], Clock(monkeypatch, step)
    monkeypatch.setattr(hashes, "file_hash", lambda p: reads.append(p) or f"{len(reads):064d}")
    path = tmp_path / "a.npz"
    for year in (1, 2):
        path.write_bytes(b"x")
        os.utime(path, (year * 3e7, year * 3e7))
        assert len({hashes.content_hash(path) for _ in range(3)}) == 1
    assert len(reads) == 2
    clock.step = 0.0
    os.utime(path, (clock.now, clock.now))  # changed just now: its clock may not tell the next change
    assert len({hashes.content_hash(path) for _ in range(3)}) == 3


def test_a_change_while_a_file_is_read_is_seen_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path, read = Clock(monkeypatch, 0.0), tmp_path / "a.npz", hashes.file_hash

    def write(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))  # within one tick of the file system's clock

    def slow(place: Path) -> str:
        value = read(place)
        write(b"new")
        clock.now += 60
        return value

    write(b"old")
    monkeypatch.setattr(hashes, "file_hash", slow)
    hashes.content_hash(path)
    monkeypatch.setattr(hashes, "file_hash", read)
    assert hashes.content_hash(path) == hashlib.sha256(b"new").hexdigest()
