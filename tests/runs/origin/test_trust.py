"""Whose code is run: what the user ran before, or says to trust, and nothing else that a folder names."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.core.user_code import judged, refuse_all, user_object
from fedsmoo.runs.origin import trust
from fedsmoo.runs.origin.method import Method, recorded_method, resolved_options
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.sweeps.results import export, from_json

TINY: dict[str, Any] = {"model": "softmax", "clients": 4, "cohort": 2, "rounds": 2, "local_steps": 1}
TINY |= {"engine": "serial"}
CODE = """
from dataclasses import dataclass
from fedsmoo import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    scale: float = 0.5
    words: tuple = (1, 2)
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration folder; the current folder holds ``mine.py``."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path / "config" / "fedsmoo" / "trusted"


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def begun(out: str, **settings: Any) -> Path:
    """A run that was stopped after its first round."""
    settings = {"algorithm": "mine.py:Mine", **TINY, **settings}
    assert fedsmoo.run(out=out, callback=lambda record: False, **settings).summary is None
    return Path(out)


def test_a_run_of_ones_own_is_resumed_without_a_word(config: Path) -> None:
    folder = begun("run")
    line = config.read_text()
    assert line.split(" ", 1)[0] == sha256("mine.py")
    assert json.loads(line.split(" ", 1)[1])["file"] == str(Path("mine.py").absolute())
    assert fedsmoo.resume(folder).summary is not None
    assert config.read_text() == line  # once


def test_names_of_ours_leave_the_list_alone(config: Path) -> None:
    fedsmoo.run(out="run", algorithm="fedavg", **TINY)
    assert not config.exists()


def test_a_strangers_run_is_resumed_once_it_is_trusted(config: Path) -> None:
    folder = begun("run")
    config.unlink()
    with pytest.raises(FedsmooError) as told:
        fedsmoo.resume(folder)
    assert f"algorithm mine.py (SHA-256 {sha256('mine.py')})" in str(told.value)
    assert "--trust" in str(told.value)
    assert "\n" not in str(told.value)
    assert not config.exists()
    stopped = fedsmoo.resume(folder, trust=True, callback=lambda record: False)
    assert config.read_text().startswith(sha256("mine.py"))
    assert len(stopped.history) == 2  # the last round is never cut
    assert stopped.summary is not None


def test_a_folder_of_before_is_asked_about_too(config: Path) -> None:
    """Which noted neither its files nor its method."""
    folder = begun("run")
    config.unlink()
    shutil.rmtree(folder / "checkpoint")
    (folder / "started.json").write_text('{"engine": "serial"}')
    assert read_run(folder).identity is None
    with pytest.raises(FedsmooError, match=r"would run code.*mine\.py"):
        fedsmoo.resume(folder)
    fedsmoo.resume(folder, trust=True)
    assert read_run(folder).identity == trust_free_identity()


def trust_free_identity() -> str:
    """What a run of the same settings notes of itself."""
    fedsmoo.run(out="again", algorithm="mine.py:Mine", **TINY)
    return json.loads(Path("again/started.json").read_text())["identity"]


@pytest.mark.parametrize("what", ["sweep", "compare", "simulate"])
def test_whatever_begins_a_run_writes_the_list(config: Path, what: str) -> None:
    if what == "sweep":
        fedsmoo.sweep({"algorithm": "mine.py:Mine", **TINY}, "out")
    elif what == "compare":
        fedsmoo.compare("mine.py:Mine", out="out", **TINY)
    else:
        settings = {k: v for k, v in TINY.items() if k != "model"}
        fedsmoo.simulate("softmax", "digits", "mine.py:Mine", out="out", **settings)
    assert config.read_text().startswith(sha256("mine.py"))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("what", ["sweep", "compare"])
def test_a_sweep_goes_on_with_anothers_runs_once_it_is_trusted(config: Path, what: str, noted: bool) -> None:
    def carry_out(stop: bool = False, **more: Any) -> Any:
        said = {"algorithm": "mine.py:Mine", **TINY}
        asked = iter([False, False, *[True] * 9])  # before the runs, before the run, after its first round
        more |= {"stop": lambda: next(asked)} if stop else {}
        if what == "compare":
            return fedsmoo.compare("mine.py:Mine", out="out", **TINY, **more).outcome
        return fedsmoo.sweep(said, "out", **more)

    assert len(carry_out(stop=True).left) == 1
    (folder,) = (p.parent for p in Path("out").glob("*/config.toml"))
    config.unlink()
    if not noted:
        (folder / "started.json").write_text('{"engine": "serial", "threads": 1}')
    with pytest.raises(FedsmooError, match=r"to go on with the run in out.*would run code.*mine\.py"):
        carry_out()
    assert len(carry_out(trust=True).finished) == 1
    config.unlink()
    carry_out()  # nothing is left to run


def test_an_edited_file_begins_other_runs_in_the_same_sweep(config: Path) -> None:
    fedsmoo.sweep({"algorithm": "mine.py:Mine", **TINY}, "out")
    Path("mine.py").write_text(CODE + "# edited\n")
    assert len(fedsmoo.sweep({"algorithm": "mine.py:Mine", **TINY}, "out").finished) == 1
    assert len(list(Path("out").glob("*/config.toml"))) == 2
    assert len(config.read_text().splitlines()) == 2


def test_what_was_judged_is_what_is_run(config: Path) -> None:
    """The bytes that are run are those whose hash was asked about, whatever the file holds by then."""
    judge = trust.judge_for(trust.code_files([("algorithm", "mine.py:Mine")]))
    with judged(judge):
        assert user_object("mine.py:Mine", "algorithm").__name__ == "Mine"
        Path("mine.py").write_text("raise SystemExit\n")
        with pytest.raises(FedsmooError, match="not what was looked at before"):
            user_object("mine.py:Mine", "algorithm")
    with judged(refuse_all), pytest.raises(FedsmooError, match="not run to read"):
        user_object("mine.py:Mine", "algorithm")


def test_a_list_that_cannot_be_written_is_a_note(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path("file").absolute()))
    notes: list[str] = []
    result = fedsmoo.run(out="run", begun=lambda run: notes.extend(run.notes), algorithm="mine.py:Mine", **TINY)
    assert result.summary is not None
    assert len(notes) == 1
    assert "trusted cannot be written" in notes[0]
    assert "--trust" in notes[0]


@pytest.mark.parametrize("content", [b"", b"junk\n\xff\x00\n", b"abc 1\n" + b"0" * 64, b"0" * 64 + b'x {"a": 1}'])
def test_a_damaged_list_is_completed_not_lost(config: Path, content: bytes) -> None:
    config.parent.mkdir(parents=True)
    config.write_bytes(content)
    known = trust.trusted_hashes()
    assert known == ({"0" * 64} if content.endswith(b"0" * 64) else set())
    assert trust.remember(trust.code_files([("model", "mine.py:Mine")])) == []
    assert trust.trusted_hashes() == known | {sha256("mine.py")}
    assert config.read_bytes().startswith(content)


def test_a_list_that_others_may_write_counts_for_nothing(config: Path) -> None:
    trust.remember(trust.code_files([("model", "mine.py:Mine")]))
    assert trust.trusted_hashes() == {sha256("mine.py")}
    config.chmod(0o666)
    assert trust.trusted_hashes() == set()


def test_processes_add_to_the_list_side_by_side(config: Path) -> None:
    """The lock is on an open file: threads, which open their own, stand for processes."""
    codes = [trust.Code("model", Path("x.py"), f"{k:064d}") for k in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda code: trust.remember([code]), codes)) == [[]] * 40
    assert trust.trusted_hashes() == {code.sha256 for code in codes}
    assert len(config.read_text().splitlines()) == 40


def test_what_names_no_code_is_none(config: Path) -> None:
    os.mkfifo("pipe.py")
    named = [
        ("dataset", "text:mine.py"),
        ("dataset", "digits"),
        ("model", "python:Net@12345678"),
        ("loss", "gone.py:f"),
    ]
    assert trust.code_files([*named, ("model", "pipe.py:f"), ("loss", "a\0b.py:f")]) == []
    both = trust.code_files([("algorithm", "mine.py:Mine"), ("model", "mine.py:net"), ("dataset", "mine.py:data")])
    assert [(c.setting, c.path) for c in both] == [("algorithm", Path("mine.py"))]


def test_a_run_notes_its_options_and_identity_and_results_keep_them(config: Path) -> None:
    fedsmoo.run(out="run", algorithm="mine.py:Mine", algorithm_options={"scale": 2}, **TINY)
    run = read_run(Path("run"))
    assert run.started["method"] == {
        "options": {"lr_server": 1.0, "scale": 2.0, "words": [1, 2]},
        "defaults": {"lr_server": 1.0, "scale": 0.5, "words": [1, 2]},
        "vectors": [1, 1, 0],
    }
    (file,) = export([Path("run")], Path("results"))
    Path("mine.py").unlink()  # nothing of it is needed
    assert read_run(Path("run")).identity == run.started["identity"] == from_json(file).identity
    assert from_json(file).name == file.stem
    config_file = Path("run/config.toml")
    config_file.write_text(config_file.read_text().replace("scale = 2", "scale = 3"))
    assert read_run(Path("run")).identity not in (None, run.started["identity"])  # another run by now


@pytest.mark.parametrize("written", [2, 2.0, "2", "2.0"])
def test_an_option_is_as_it_was_noted_however_it_is_written(written: Any) -> None:
    method = Method({"scale": 2.0}, {"scale": 0.5})
    config = fedsmoo.Config(algorithm="gone.py:Mine", algorithm_options={"scale": written})
    assert resolved_options(config, method) == ({"scale": 2.0}, {"scale": 0.5})


@pytest.mark.parametrize("vectors", [[1, 2], "112", [1, -1, 0], [0, 0, 3], [True, 1, 0], [1.0, 1, 0], None])
def test_counts_that_are_none_are_left_out(vectors: Any) -> None:
    found = recorded_method({"method": {"options": {}, "defaults": {}, "vectors": vectors}})
    assert found == Method({}, {}, None)
    assert recorded_method({"method": {"options": [], "defaults": {}}}) is None
    assert recorded_method({"method": 3}) is recorded_method({}) is None
