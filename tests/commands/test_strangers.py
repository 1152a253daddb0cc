"""Reading never executes: what a stranger's folder names is not imported by any command or function that reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.pages.server import LiveData
from fedsmoo.paper import table
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.storage.verify import verify
from fedsmoo.sweeps.index import query
from fedsmoo.sweeps.results import collect, export, from_folder, from_json

from .conftest import Call
from .strangers import MARK, evil_code, evil_run, evil_runs, marked

READING = {
    "runs": ["runs", "theirs"],
    "runs, all columns": ["runs", "theirs", "--show", "all"],
    "runs as JSON": ["runs", "theirs", "--json"],
    "export": ["results", "export", "theirs", "--to", "results"],
    "accuracy": ["table", "accuracy", "--no-run", "--out", "theirs"],
    "communication": ["table", "communication", "--no-run", "--out", "theirs"],
    "dry run": ["table", "accuracy", "--dry-run", "--out", "theirs", "--scale", "0.01"],
    "report": ["report", "theirs"],
    "curves": ["figure", "accuracy", "theirs", "--out", "c.svg"],
    "sensitivity": ["figure", "sensitivity", "theirs", "--over", "lr", "--out", "c.svg"],
    "list": ["list"],
}


@pytest.mark.parametrize("name", READING)
def test_commands_that_read_import_nothing(call: Call, tmp_path: Path, name: str) -> None:
    evil_runs(tmp_path)
    answer = call(*READING[name])
    assert not marked(tmp_path), answer
    assert "Traceback" not in answer.err
    if name.startswith(("runs", "export", "report", "accuracy")):
        assert answer.code == 0, answer.err
        if name.startswith(("runs", "export")):
            assert answer.out.count("evil.py") + answer.out.count("linked.py") >= 3, "a folder is hidden"


@pytest.mark.parametrize("name", ["ledger", "verify"])
def test_commands_that_take_run_folders_import_nothing(call: Call, tmp_path: Path, name: str) -> None:
    for folder in evil_runs(tmp_path):
        answer = call(name, str(folder))
        assert not marked(tmp_path), folder
        assert "Traceback" not in answer.err
        assert folder.name in answer.out, answer.err


def test_functions_that_read_import_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = evil_runs(tmp_path)
    assert len(query(Path("theirs"))) == len(folders)
    assert len(collect([Path("theirs")])) == len(folders)
    for file in export([Path("theirs")], tmp_path / "results"):
        assert from_json(file).identity == from_json(file).identity
    table("accuracy", out="theirs", results="results", run=False).render()
    table("communication", out="theirs", results="results", run=False).render()
    fedsmoo.report("theirs", tmp_path / "page.html")
    LiveData([Path("theirs")]).data()
    for folder in folders:
        run = read_run(folder)
        assert (len(run.history), run.config.rounds, run.identity is None) == (2, 2, run.config.algorithm != "fedavg")
        assert from_folder(folder).name
        assert verify(folder).folder == folder
    assert not marked(tmp_path)


def test_results_alone_import_nothing_whatever_they_pass_for(call: Call, tmp_path: Path) -> None:
    """Hashes of a run's files stand beside its settings; they must not take the place of one."""
    (folder,) = (f for f in evil_runs(tmp_path) if f.name == "algorithm-absolute")
    call("results", "export", str(folder), "--to", "results")
    sweep = table("communication", out="none", run=False).sweep
    for k, cell in enumerate(sweep.cells[:3]):
        (file,) = Path("results").glob("*evil*.json")
        forged = json.loads(file.read_text())
        passed = {k: v for k, v in cell.config.to_dict().items() if isinstance(v, str)}
        forged["config"] = {k: v for k, v in cell.config.to_dict().items() if v is not None}
        forged["config"]["algorithm"] = str(tmp_path / "evil.py:Method")
        forged["contents"] = passed
        forged["curve"]["test_accuracy"] = [0.9, 0.95]
        (tmp_path / "results" / f"forged{k}.json").write_text(json.dumps(forged))
    for name in ("communication", "accuracy", "rounds", "wallclock"):
        answer = call("table", name, "--no-run", "--results", "results", "--out", "none")
        assert "Traceback" not in answer.err
        assert answer.code == 0, answer.err
    call("figure", "accuracy", "results", "--out", "c.svg")
    assert not marked(tmp_path)


def test_resume_and_analyse_of_a_strangers_folder_say_what_would_run(call: Call, tmp_path: Path) -> None:
    for folder in evil_runs(tmp_path, finished=False):
        answer = call("resume", str(folder))
        assert not marked(tmp_path), folder
        assert answer.code == 2
        assert "--trust" in answer.err
        assert answer.err.count("\n") == 1
        assert (tmp_path / "evil.py").name in answer.err or "linked.py" in answer.err
        with pytest.raises(FedsmooError, match="trust"):
            fedsmoo.resume(folder)
        (folder / "summary.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"")
        assert "--trust" in call("analyse", "sharpness", str(folder)).err
        with pytest.raises(FedsmooError, match="trust"):
            fedsmoo.analyse("sharpness", folder)
    assert not marked(tmp_path)


def test_a_sweep_imports_nothing_that_a_folder_in_its_way_names(call: Call, tmp_path: Path) -> None:
    Path("grid.toml").write_text(
        'rounds = 1\nclients = 4\ncohort = 2\nlocal_steps = 1\nmodel = "softmax"\nalgorithm = "fedavg"\n'
    )
    assert call("sweep", "grid.toml", "--out", "runs").code == 0
    (mine,) = (p for p in Path("runs").iterdir() if p.is_dir())
    for finished in (True, False):
        for folder in (
            evil_runs(tmp_path / f"x{finished}", finished) if (tmp_path / f"x{finished}").mkdir() is None else ()
        ):
            for file in mine.iterdir():
                if file.is_file():
                    file.unlink()
            for name in ("config.toml", "metrics.jsonl", "started.json", "summary.json"):
                if (folder / name).exists():
                    (mine / name).write_bytes((folder / name).read_bytes())
            answer = call("sweep", "grid.toml", "--out", "runs")
            assert "Traceback" not in answer.err
            assert not marked(tmp_path / f"x{finished}"), folder
            assert "another run" in answer.err, answer.err


def test_a_comparison_imports_nothing_that_a_folder_in_its_way_names(call: Call, tmp_path: Path) -> None:
    words = ["--model", "softmax", "--clients", "4", "--cohort", "2", "--rounds", "2", "--local-steps", "1"]
    for k, folder in enumerate(evil_runs(tmp_path)):
        place = tmp_path / f"c{k}"
        place.mkdir()
        folder.rename(place / "fedavg-seed0")
        answer = call("compare", "--algorithms", "fedavg", "--out", str(place), *words)
        assert "Traceback" not in answer.err
        assert answer.code == 2, answer.out
        assert not marked(tmp_path)


def test_a_page_rebuilds_no_division_by_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evil_runs(tmp_path)
    evil_run(tmp_path / "theirs" / "data", dataset="digits", data=str(tmp_path / "evil.py:data"))
    fedsmoo.report("theirs", tmp_path / "page.html")
    assert not marked(tmp_path)


def test_a_split_that_names_code_is_shown_once_that_is_trusted(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil_code(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    words = ["--partition", "iid", "--clients", "4", "--out", "split.json"]
    assert call("data", "split", "evil.py:data", *words).code == 0
    (tmp_path / MARK).unlink()
    assert call("data", "show", "split.json").code == 0  # one's own, by now
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs"))
    refused = call("data", "show", "split.json")
    assert refused.code == 2
    assert "dataset evil.py (SHA-256" in refused.err
    assert "--trust" in refused.err
    assert not marked(tmp_path)
    assert call("data", "show", "split.json", "--trust").code == 0
    assert call("data", "show", "split.json").code == 0


def test_one_bad_folder_or_file_hides_no_other(call: Call, tmp_path: Path) -> None:
    good = evil_run(tmp_path / "all" / "good")
    for name, file, content in [
        ("empty", "config.toml", ""),
        ("torn", "config.toml", "rounds = ["),
        ("unknown", "config.toml", 'algorithm = "nobody"\nlrr = 1\n'),
        ("lines", "metrics.jsonl", '{"round": 1}\n{"round": 2}\n'),
        ("facts", "summary.json", '{"rounds": "many"}'),
        ("cut", "summary.json", '{"rou'),
        ("links", "metrics.jsonl", None),
    ]:
        path = evil_run(tmp_path / "all" / name) / file
        if content is None:
            path.unlink()
            path.symlink_to("/etc/passwd")
        else:
            path.write_text(content)
    Path("results").mkdir()
    Path("results/bad.json").write_text('{"format": "fedsmoo result 1"}')
    Path("results/worse.json").write_text('{"format": "fedsmoo result 1"')
    shown = call("runs", "all")
    assert (shown.code, shown.out.count("unreadable")) == (0, 5)
    *table, common = shown.out.splitlines()[3:]
    assert common.startswith("in common: ")
    assert [line.split()[0] for line in table] == sorted(p.name for p in Path("all").iterdir() if p.is_dir())
    exported = call("results", "export", "all", "--to", "kept")
    assert exported.code == 0, exported.err
    assert exported.out.count(".json") == 1
    assert len(exported.err.splitlines()) == 7 + 1  # the next command
    made = call("table", "accuracy", "--no-run", "--out", "all", "--results", "results")
    assert made.code == 0
    assert made.err.count("left out") == 7 + 2
    assert call("report", "all").code == 0
    assert (len(collect([Path("all")], Path("results"), note=lambda line: None)), good.name) == (1, "good")


ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\nfedsmoo: all is well\u202e\x9b31m"
FOLDERS = [os.fsencode(f"a{ESCAPES}b"), b"invalid \xff\xfe utf-8", b"<script>alert(1)<", b"[bold]x[]"]


def is_harmless(said: str) -> bool:
    """Whether a terminal only shows it: no control characters, no surrogates, no line that starts as one of ours."""
    lines = said.split("\n")
    forged = any(line.startswith("fedsmoo: all is well") for line in lines)
    return not forged and all(ch.isprintable() for line in lines for ch in line)


def hostile_runs(root: Path) -> list[Path]:
    """Runs with control characters wherever text may stand."""
    folders = []
    for k, name in enumerate(FOLDERS):
        folder = evil_run(root / "theirs" / os.fsdecode(name), algorithm="fedavg", seed=k)
        (folder / "label.txt").write_text(f"label {ESCAPES}")
        facts: dict[str, Any] = dict.fromkeys(("engine", "device", "command", "commit", "finished"), ESCAPES)
        facts |= {"rounds": 2, "test_accuracy": 0.5, "versions": {"torch": ESCAPES}, ESCAPES: 1}
        (folder / "summary.json").write_text(json.dumps(facts))
        folders.append(folder)
    bad = evil_run(root / "theirs" / "bad", algorithm="fedavg")
    (bad / "config.toml").write_text(f"{json.dumps(ESCAPES)} = 1\n")
    failed = evil_run(root / "theirs" / "failed", finished=False, loss=ESCAPES.replace("\n", ""))
    (failed / "failed.json").write_text(json.dumps({"error": ESCAPES}))
    return [*folders, bad, failed]


def test_control_characters_are_shown_harmlessly(call: Call, tmp_path: Path) -> None:
    folders = hostile_runs(tmp_path)
    Path("results").mkdir()
    answers = [
        call("runs", "theirs"),
        call("runs", "theirs", "--show", "all"),
        call("runs", "theirs", "--json"),
        call("results", "export", "theirs", "--to", "results"),
        call("report", "theirs"),
        call("figure", "accuracy", "theirs", "--out", "c.svg"),
        call("figure", "accuracy", "results", "--out", "d.svg"),
        call("verify", *map(str, folders)),
        *(call("ledger", str(folder), "--per-round") for folder in folders),
        *(call("table", "accuracy", "--no-run", "--out", "theirs", "--format", form) for form in ("text", "csv")),
        call("resume", str(folders[0])),
        call("analyse", "sharpness", "theirs"),
    ]
    for answer in answers:
        assert is_harmless(answer.out), answer
        assert is_harmless(answer.err), answer
        assert "Traceback" not in answer.err
    assert [answer.code for answer in answers[:6]] == [0] * 6, answers[:6]
    page = Path("report.html").read_text("utf-8")
    assert "\x1b" not in page
    assert "<script>alert" not in page


def test_control_characters_in_a_table_of_results(call: Call, tmp_path: Path) -> None:
    hostile_runs(tmp_path)
    call("results", "export", "theirs", "--to", "results")
    cell = table("accuracy", out="none", run=False).sweep.cells[0]
    (file, *_) = Path("results").glob("*.json")
    rounds, found = cell.config.rounds, json.loads(file.read_text())
    curve = {n: [v[-1]] * rounds if isinstance(v, list) else v for n, v in found["curve"].items()}
    curve["round"] = [*range(1, rounds + 1)]  # all of them: a run that was cut is left out
    forged = {**found, "curve": curve, "config": cell.config.to_dict(), "device_type": ESCAPES}
    Path("results/forged.json").write_text(json.dumps(forged))
    for form in ("text", "markdown", "latex", "csv"):
        answer = call("table", "accuracy", "--no-run", "--results", "results", "--out", "none", "--format", form)
        assert answer.code == 0, answer.err
        assert is_harmless(answer.out), answer.out
        assert "owned" in answer.out or form == "csv"  # it is shown
