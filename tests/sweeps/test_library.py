"""The library under the commands for many runs: sweep, compare, analyse, report and the paper's tables from Python."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsmoo
from fedsmoo.analysis.measurement import measurements
from fedsmoo.cli import main
from fedsmoo.commands import analyse, compare, report, run, sweep
from fedsmoo.core import FedsmooError
from fedsmoo.pages import page
from fedsmoo.sweeps.comparison import Comparison
from fedsmoo.sweeps.queue import Outcome
from fedsmoo.sweeps.sweep import open_sweep

TINY: dict[str, Any] = {
    "model": "softmax", "clients": 4, "cohort": 2, "rounds": 3, "local_steps": 1, "engine": "serial", "device": "cpu",
}  # fmt: skip
FLAGS = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
GRID = "seed = [0, 1]\nlr = [0.05, 0.1]\n"
TABLE = {"seed": [0, 1], "lr": [0.05, 0.1]}


@pytest.fixture
def printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str, str]]:
    """What ``fedsmoo`` prints for some words, in an empty folder; without words, what was printed since."""
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(GRID)

    def call(*words: str, code: int = 0) -> tuple[str, str]:
        if words:
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main(list(words))
            assert int(ended.value.code or 0) == code
        found = capsys.readouterr()
        return found.out, found.err

    return call


def rounds(folder: Path) -> list[dict[str, Any]]:
    """A run's rounds without their seconds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]


@pytest.mark.parametrize("source", ["grid.toml", Path("grid.toml"), TABLE], ids=["text", "path", "table"])
def test_a_sweep_is_the_command_s_and_silent(source: Any, printed: Callable[..., tuple[str, str]]) -> None:
    said: dict[str, list[Any]] = {name: [] for name in ("watch", "begun", "finished", "failed", "note")}
    callbacks = {name: lambda *words, found=found: found.append(words) for name, found in said.items()}
    outcome = fedsmoo.sweep(source, "mine", save_every=0, **callbacks, **TINY)
    assert printed() == ("", "")
    assert {name: len(found) for name, found in said.items()} == {
        "watch": 4 * 3, "begun": 4, "finished": 4, "failed": 0, "note": 0,
    }  # fmt: skip
    assert [folder for _, folder, _ in said["finished"]] == outcome.finished
    assert outcome == Outcome(finished=sorted(outcome.finished, key=lambda p: outcome.finished.index(p)))
    out, _ = printed("sweep", "grid.toml", *FLAGS, "--out", "command")
    assert out == "4 finished, 0 failed, 0 left; runs in command\n"
    assert sorted(p.name for p in outcome.finished) == sorted(p.name for p in Path("command").glob("*seed*"))
    for folder in outcome.finished:
        assert rounds(folder) == rounds(Path("command", folder.name))
    again = fedsmoo.sweep(source, "mine", watch=lambda *words: pytest.fail("a round"), **TINY)
    assert again.finished == outcome.finished


def test_a_sweep_that_is_stopped_goes_on(printed: Callable[..., tuple[str, str]]) -> None:
    seen: list[int] = []
    watch, stop = (lambda config, record: seen.append(record.round)), (lambda: len(seen) == 4)
    outcome = fedsmoo.sweep("grid.toml", watch=watch, stop=stop, **TINY)
    assert (seen, len(outcome.finished), len(outcome.left)) == ([1, 2, 3, 1], 1, 3)
    assert outcome.finished[0].parent == Path("runs/grid")
    done = fedsmoo.sweep("grid.toml", watch=watch, to="kept", **TINY)
    assert seen[4:] == [2, 3, 1, 2, 3, 1, 2, 3]
    assert (len(done.finished), done.left) == (4, [])
    assert len(list(Path("kept").glob("*.json"))) == 4, "of all that have finished"
    assert fedsmoo.sweep("grid.toml", minutes=0, out="none", **TINY).finished == []
    with pytest.raises(FedsmooError, match="unknown setting"):
        fedsmoo.sweep("grid.toml", rouns=3)
    assert printed() == ("", "")


def test_a_comparison_is_the_command_s(printed: Callable[..., tuple[str, str]]) -> None:
    methods = {"fedavg": {}, "scaffold": {"lr_server": 0.5}}
    found = fedsmoo.compare(methods, [0, 1], out="both", lr=0.05, **TINY)
    assert printed() == ("", "")
    words = ["--algorithms", "fedavg,scaffold", "--seeds", "0,1", "--set", "scaffold.lr_server=0.5", "--lr", "0.05"]
    out, err = printed("compare", *words, *FLAGS, "--out", "both")
    assert out == f"{found.text}curves: both/curves.png\n"
    said = ["FedAvg: 0 runs", "SCAFFOLD: 0 runs", "next: fedsmoo report both"]
    assert [line.partition(" in ")[0] for line in err.splitlines()] == said
    printed("compare", *words, *FLAGS, "--out", "command")
    for label, name in (("FedAvg", "fedavg"), ("SCAFFOLD", "scaffold")):
        ends = []
        for seed in (0, 1):
            folder = Path(f"{name}-seed{seed}")
            assert rounds("both" / folder) == rounds("command" / folder)
            assert found.runs[label][seed].path == "both" / folder
            ends.append(statistics.fmean(line["test_accuracy"] for line in rounds("both" / folder)))
        row = next(row for row in found.rows if row.method == label)
        assert (row.seeds, row.accuracy) == (2, pytest.approx(statistics.fmean(ends), abs=1e-12))
        assert f"{100 * row.accuracy:.2f} ± {100 * statistics.stdev(ends):.2f}" in found.text
    frame = found.frame
    assert frame.groupby(["method", "seed"])["round"].max().to_dict() == {
        (method, seed): 3 for method in ("FedAvg", "SCAFFOLD") for seed in (0, 1)
    }
    assert list(frame.columns[:3]) == ["method", "seed", "round"]
    with pytest.raises(FedsmooError, match=r"fedavg-seed0 was begun with other settings \(lr was 0.05, is 0.1\)"):
        fedsmoo.compare(methods, "0,1", out="both", lr=0.1, **TINY)


def test_a_comparison_that_is_stopped_goes_on(printed: Callable[..., tuple[str, str]]) -> None:
    seen: list[int] = []
    watch = lambda config, record: seen.append(record.round)  # noqa: E731
    found = fedsmoo.compare("fedavg,fedsam", out="both", watch=watch, stop=lambda: len(seen) == 2, **TINY)
    assert (found.text, found.rows) == ("", [])
    assert found.outcome.left == [Path("both/fedavg-seed0"), Path("both/fedsam-seed0")]
    assert not found.curves.exists()
    found = fedsmoo.compare("fedavg,fedsam", [0], out="both", watch=watch, **TINY)
    assert seen == [1, 2, 3, 1, 2, 3]
    assert [row.method for row in found.rows] == ["FedAvg", "FedSAM"]
    assert found.curves.exists()
    assert printed() == ("", "")


@pytest.mark.parametrize(("given", "says"), [
    ({"seed": 3}, "a comparison takes its seeds from"),
    ({"r": 0.3}, "r is a hyper-parameter of fedsmoo, but not of fedavg: say whose it is"),
    ({"algorithms": {"fedavg": {"partition": "iid"}}}, "methods are compared on the same data"),
    ({"algorithms": ["fedavg", "FedAvg"]}, "names 'FedAvg' twice"),
    ({"seeds": [0, 0]}, "names a seed twice"),
    ({"algorithms": []}, "there is no method to compare"),
    ({"algorithms": [fedsmoo.FedAvg]}, r"but methods are named or made: write FedAvg\(\)"),
    ({"algorithms": {"fedavg": None}}, "the settings of fedavg are None, but must be a mapping"),
])  # fmt: skip
def test_what_a_comparison_refuses(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(FedsmooError, match=says):
        fedsmoo.compare(**{"algorithms": "fedavg,fedsmoo", "out": tmp_path / "both", **TINY, **given})
    assert not (tmp_path / "both").exists()


def test_measurements_and_the_page_are_the_command_s(
    printed: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "made", lambda: "now")
    printed("run", "--algorithm", "scaffold", *FLAGS, "--out", "runs/one")
    mine = fedsmoo.analyse("sharpness", "runs", samples=100, device="cpu")
    assert printed() == ("", "")
    kept = Path("runs/one/analysis/sharpness.json")
    found = json.loads(kept.read_text())
    assert {k: v for k, v in found.items() if k not in ("device", "precision")} == mine[0].values
    kept.unlink()
    out, _ = printed("analyse", "sharpness", "runs", "--samples", "100", "--device", "cpu")
    assert json.loads(kept.read_text()) == found
    assert [line.split() for line in out.splitlines()[1:]] == [" ".join(row).split() for row in mine[0].rows]
    assert fedsmoo.report("runs", "mine.html") == Path("mine.html")
    out, _ = printed("report", "runs")
    assert out == "1 run: report.html\n"
    assert Path("mine.html").read_bytes() == Path("report.html").read_bytes()
    with pytest.raises(FedsmooError, match="unknown measurement 'sharpnes': did you mean 'sharpness'"):
        fedsmoo.analyse("sharpnes", "runs")
    with pytest.raises(FedsmooError, match="unknown option of sharpness 'sampels': did you mean 'samples'"):
        fedsmoo.analyse("sharpness", "runs", sampels=1)
    with pytest.raises(FedsmooError, match="samples is 'many', but must be a whole number"):
        fedsmoo.analyse("sharpness", "runs", samples="many")
    assert repr(mine[0].run) == "<FinishedRun: runs/one>"
    Path("kept").mkdir()
    for function in (fedsmoo.report, lambda where: fedsmoo.analyse("sharpness", where)):
        with pytest.raises(FedsmooError, match="no run folder in kept"):
            function("kept")


SMALL = {
    "dataset": "digits",
    "scale": 0.0025,
    "model": "softmax",
    "clients": 4,
    "engine": "serial",
    "device": "cpu",
    "precision": "fp32",
}
PART = {"columns": "10%-of-100 cifar10.dirichlet-0.1", "methods": ["FedAvg", "FedSMOO"]}


def test_a_table_of_the_paper_is_the_command_s(printed: Callable[..., tuple[str, str]]) -> None:
    words = ["table", "accuracy", "--columns", PART["columns"], "--methods", "FedAvg,FedSMOO", "--out", "runs"]
    words += [w for name, value in SMALL.items() for w in (f"--{name.replace('_', '-')}", str(value))]
    settings = {**SMALL, "cohort": 2}
    empty = fedsmoo.paper.table("accuracy", **PART, out="runs", run=False, **settings)
    assert [len(empty.missing.cells), "Nothing measured yet." in str(empty)] == [2, True]
    seen: list[int] = []
    made = fedsmoo.paper.table("accuracy", **PART, out="runs", watch=lambda c, r: seen.append(r.round), **settings)
    assert printed() == ("", "")
    assert (seen, len(made.outcome.finished), made.missing.cells) == ([1, 2, 1, 2], 2, [])
    out, err = printed(*words, "--cohort", "2")
    assert (out, err) == (made.render(), f"next: fedsmoo {shlex.join(words)} --cohort 2 --format latex\n")
    out, _ = printed(*words, "--cohort", "2", "--no-run", "--format", "csv")
    assert out == made.render("csv")
    last = {row[0]: row[3] for table in made.tables for row in table.rows}
    for folder in made.outcome.finished:
        config = folder.name.partition("-")[0]
        method = {"fedavg": "FedAvg", "fedsmoo": "FedSMOO"}[config]
        assert last[method] == f"{100 * rounds(folder)[-1]['test_accuracy']:.2f}"
    Path("results").mkdir()
    Path("a.md").write_text("<!-- table: accuracy --methods FedAvg -->\nold\n<!-- /table -->\n")
    assert fedsmoo.paper.update(["a.md"]) == [Path("a.md")]
    assert fedsmoo.paper.update(["a.md"], check=True) == []
    assert "| FedAvg |" in Path("a.md").read_text()


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a function's parameters, a path as its text and nothing as none."""
    found = inspect.signature(function).parameters.values()
    values = {p.name: p.default for p in found if p.default is not inspect.Parameter.empty}
    return {name: str(v) if isinstance(v, Path) else None if v == () else v for name, v in values.items()}


@pytest.mark.parametrize(("function", "command", "own"), [
    ("run", run._run, {"sets"}),
    ("resume", run.resume, set()),
    ("sweep", sweep._sweep, {"dry_run", "no_wait"}),
    ("compare", compare.compare_methods, {"sets", "given"}),
    ("report", report.report, set()),
    *(("analyse", analyse.command(cls), {f.name for f in dataclasses.fields(cls)}) for cls in measurements().values()),
])  # fmt: skip
def test_a_function_has_the_defaults_of_its_command(function: str, command: Any, own: set[str]) -> None:
    """``own`` are those of the command alone: flags that a call says otherwise, or a measurement's options."""
    theirs, ours = defaults(command), defaults(getattr(fedsmoo, function))
    assert own <= theirs.keys()
    assert {name: theirs[name] for name in theirs.keys() - own} == {name: ours[name] for name in theirs.keys() - own}
    if function == "sweep":
        assert ours["wait"] is not theirs["no_wait"]


def test_a_comparison_says_at_a_prompt_what_is_not_in_its_table() -> None:
    outcome = Outcome(failed={Path("c/fedavg-seed1"): "boom"}, left=[Path("c/fedsam-seed0")])
    found = Comparison(fedsmoo.Config(), {}, outcome, Path("c"))
    assert repr(found) == str(found) == "failed: fedavg-seed1: boom\nnot finished: fedsam-seed0\n"


def test_what_python_has_in_place_of_a_list_makes_a_grid_too() -> None:
    grid = open_sweep({"lr": (0.1, 0.2), "seed": range(2), "weight_decay": np.array([0.25, 0.5])}, TINY)
    assert [(c.lr, c.seed, c.weight_decay) for c in grid.configs] == [
        (lr, seed, decay) for lr in (0.1, 0.2) for seed in (0, 1) for decay in (0.25, 0.5)
    ]
    assert {type(c.weight_decay) for c in grid.configs} == {float}
    with pytest.raises(FedsmooError, match="seed is an empty list"):
        open_sweep({"seed": range(0)})
    with pytest.raises(FedsmooError, match=r"lr lists 0\.1 twice"):
        open_sweep({"lr": (0.1, 0.1)})


@pytest.mark.parametrize(("source", "says"), [
    (3, "a sweep is 3, but must be a table of settings, or the path of a TOML file"),
    ({3: 1}, "the table: unknown setting 3; known: "),
])  # fmt: skip
def test_what_is_no_sweep_is_refused(source: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(FedsmooError, match=says):
        fedsmoo.sweep(source, tmp_path / "sweep")


def test_runs_do_not_lie_in_a_run(tmp_path: Path) -> None:
    fedsmoo.run(TINY, tmp_path / "runs" / "one", rounds=1)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FedsmooError, match=r"one is a run, and runs do not lie in a run"):
        fedsmoo.sweep({"lr": [0.1]}, tmp_path / "runs" / "one", **TINY)
    with pytest.raises(FedsmooError, match=r"runs holds runs, such as .*one: a run needs a folder of its own"):
        fedsmoo.run(TINY, tmp_path / "runs", rounds=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_document_s_example_runs(printed: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    scope: dict[str, Any] = {}
    Path("results").mkdir()  # else those that came with the package are shown
    exec(text.split("## In Python")[1].split("```python\n")[1].partition("```")[0], scope)
    out, err = printed()
    assert (out.splitlines()[0], err) == ("4 {} []", "")
    assert scope["found"].text in out
    assert sorted(scope["last"].index) == ["FedAvg", "FedSMOO"]
    assert len(scope["sharp"]) == 6
    assert Path("report.html").exists()
    assert scope["table"].missing.cells, "nothing was measured here"
