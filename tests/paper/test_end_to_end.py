"""``fedsmoo table`` from nothing to a printed table, on a CPU with a small model."""

from __future__ import annotations

import json
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from setuptools import Distribution

from fedsmoo.cli import main
from fedsmoo.sweeps.bases import EXPERIMENTS
from fedsmoo.sweeps.results import is_current_result
from fedsmoo.version import __version__

from .small import fake_cifar

SMALL = [
    "--model",
    "softmax",
    "--device",
    "cpu",
    "--precision",
    "fp32",
    "--engine",
    "batched",
    "--columns",
    "10%-of-100 cifar10.dirichlet-0.1",
]
TABLE = ["table", "accuracy", "--scale", "0.01", *SMALL]


@pytest.fixture
def fake_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, beside a data set that has the form of CIFAR-10."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSMOO_DATA", str(fake_cifar(tmp_path / "data")))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("fake_data")
def test_a_table_with_a_run_that_failed_is_printed_and_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    table = [*TABLE, "--methods", "FedAvg"]
    assert run(*table, "--lr", "1e12", "--clip", "none") == 1
    said = capsys.readouterr()
    assert "failed: fedavg-" in said.err
    assert "FedAvg" in said.out


@pytest.mark.usefixtures("fake_data")
def test_a_small_version_runs_what_is_missing_and_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    table = [*TABLE, "--methods", "FedAvg,FedSMOO"]
    assert run(*table) == 0
    first = capsys.readouterr()
    assert "2 runs, 16 rounds: about" in first.err
    assert "measured" in first.err
    assert "Not the paper's setting" in first.out
    assert "rounds = 8" in first.out
    assert "model = softmax" in first.out
    lines = {line.split()[0]: line.split() for line in first.out.splitlines() if line.startswith(("FedAvg", "FedSMOO"))}
    assert lines["FedSMOO"][1] == "1"  # seed
    assert 10 <= float(lines["FedSMOO"][2]) <= 100
    assert lines["FedSMOO"][5] == "80.82"
    assert run(*table) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert "rounds: about" not in again.err  # nothing was missing
    assert run("results", "export", "runs/paper", "--to", "results") == 0
    files = capsys.readouterr().out.split()
    assert len(files) == 2
    assert json.loads(Path(files[0]).read_text())["format"] == "fedsmoo result 1"
    assert run(*table, "--out", "nowhere", "--no-run") == 0
    assert capsys.readouterr().out == first.out  # from the files alone, to the byte
    assert run(*table, "--format", "latex", "--no-run") == 0
    assert r"\begin{tabular}" in capsys.readouterr().out
    assert run("runs", "runs/paper", "--where", "algorithm = 'fedsmoo'") == 0
    assert "finished" in capsys.readouterr().out


@pytest.mark.usefixtures("fake_data")
def test_curves_are_drawn(tmp_path: Path) -> None:
    assert run("table", "curves", "--scale", "0.01", *SMALL, "--methods", "FedAvg", "--figure", "pictures") == 0
    picture = tmp_path / "pictures" / "10-of-100-cifar10.dirichlet-0.1.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_document_s_table_needs_neither_cifar_nor_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    (words,) = [line for line in text.splitlines() if line.startswith("fedsmoo table") and "--dataset digits" in line]
    given = shlex.split(words)[1:]
    given[given.index("--columns") + 1] = "10%-of-100 cifar10.dirichlet-0.1"
    assert run(*given, "--methods", "FedAvg", "--device", "cpu") == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("FedAvg")]
    assert row[1] == "1"
    assert 0 < float(row[2]) <= 100


def test_a_table_is_shown_outside_the_checkout_from_the_package_s_own_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2]
    words = ["table", "accuracy", "--columns", "10%-of-100 cifar10.dirichlet-0.1", "--no-run"]
    monkeypatch.chdir(tmp_path)
    assert run(*words, "--results", str(root / "results")) == 0
    in_checkout = capsys.readouterr()
    assert [line[:6] for line in in_checkout.err.splitlines()] == ["next: "]
    assert run(*words) == 0
    alone = capsys.readouterr()
    assert alone.out == in_checkout.out
    assert "FedSMOO" in alone.out
    said = f"fedsmoo: nothing was measured here: the results shown came with fedsmoo {__version__}\nnext: "
    assert alone.err.startswith(said)
    (tmp_path / "results").mkdir()  # somebody's own, in which nothing was measured
    assert run(*words) == 0
    assert "Nothing measured yet." in capsys.readouterr().out


def test_a_wheel_carries_every_result_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    root, given = Path(__file__).parents[2], dict[str, Any]()
    monkeypatch.setattr("setuptools.setup", lambda **options: given.update(options))
    space = runpy.run_path(str(root / "setup.py"))
    monkeypatch.chdir(root)
    carried = {str(p.relative_to("results")) for p in space["measured"]()}
    places = [Path("results"), *(p for p in Path("results").iterdir() if p.name in EXPERIMENTS)]
    there = [p for place in places for p in place.glob("*.json") if is_current_result(json.loads(p.read_bytes()))]
    assert carried == {str(p.relative_to("results")) for p in there}
    assert {name.partition("/")[0] for name in carried if "/" in name} >= {"ablation", "sensitivity"}
    copied = dict[str, str]()
    build = given["cmdclass"]["build_py"](Distribution())
    build.build_lib, build.packages, build.py_modules = "made", [], []
    monkeypatch.setattr(build, "mkpath", lambda path: None)
    monkeypatch.setattr(build, "copy_file", lambda a, b: copied.update({a: b}))
    build.run()
    assert copied == {f"results/{name}": f"made/fedsmoo/paper/results/{name}" for name in carried}
