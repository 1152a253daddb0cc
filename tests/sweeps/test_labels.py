"""What a sweep's file calls its methods is what runs, figures and pages call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsmoo.cli import main
from fedsmoo.pages.figures.sources import drawable, find
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.names import LABEL
from fedsmoo.runs.storage.reader import read_label
from fedsmoo.sweeps.bases import read_sweep
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.methods import folder_stem

SWEEP = """
model = "softmax"
rounds = 2
local_steps = 1
clients = 4
cohort = 2
partition = "iid"
engine = "serial"
device = "cpu"
seed = [0, 1]

[methods.FedAvg]
[methods.FedSMOO]
[methods."{name}"]
algorithm = "fedsmoo"
sam = false
"""


def call(*words: str | Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(w) for w in words])
    assert not ended.value.code


def swept(folder: Path, name: str) -> Path:
    """A sweep whose third method goes by a name, carried out in ``folder/runs``."""
    (folder / "sweep.toml").write_text(SWEEP.replace("{name}", name))
    call("sweep", folder / "sweep.toml", "--out", folder / "runs", "--to", folder / "results")
    return folder / "runs"


def groups(path: Path) -> list[str]:
    """The lines that a figure or the page has of what lies in a folder."""
    return sorted({run["group"] for run in drawable(find([path]))["runs"]})


def test_runs_figures_and_results_call_a_method_as_the_file_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = swept(tmp_path, "Ours, plain")
    assert groups(root) == groups(tmp_path / "results") == ["FedAvg", "FedSMOO", "Ours, plain"]
    capsys.readouterr()
    call("runs", root)
    lines = capsys.readouterr().out.splitlines()
    assert "label" in lines[1].split()
    assert sum("Ours, plain" in line for line in lines) == 2
    call("runs", root, "--where", "label = 'Ours, plain'", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [(r["algorithm"], r["seed"]) for r in found] == [("fedsmoo", 0), ("fedsmoo", 1)]
    assert all(json.loads(r["options"])["sam"] is False for r in found)
    call("figure", "accuracy", root, "--out", tmp_path / "curves.svg")
    call("report", root, "--out", tmp_path / "page.html")
    assert "Ours, plain" in (tmp_path / "page.html").read_text()


def test_another_name_in_the_file_is_another_name_of_the_same_runs(tmp_path: Path) -> None:
    root = swept(tmp_path, "First")
    made = {p.name: (p / "summary.json").read_bytes() for p in root.glob("*/")}
    assert groups(swept(tmp_path, "Second")) == ["FedAvg", "FedSMOO", "Second"]
    assert {p.name: (p / "summary.json").read_bytes() for p in root.glob("*/")} == made
    text = (tmp_path / "sweep.toml").read_text()
    (tmp_path / "sweep.toml").write_text(text.replace('[methods."Second"]', "[methods.fedsmoo]"))
    call("sweep", tmp_path / "sweep.toml", "--out", root)
    assert groups(root) == ["FedAvg", "FedSMOO", "FedSMOO (sam=False)"]
    assert {read_label(p) for p in root.glob("*/")} == {None}


def test_a_list_under_a_label_is_told_apart_and_own_names_are_no_labels(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP.replace("{name}", "Ours") + "beta = [1, 10]\n")
    sweep = read_sweep(tmp_path / "sweep.toml")
    assert sorted(sweep.labels.values()) == ["Ours"] * 4
    assert set(sweep.labels) == {run_name(c) for c in sweep.configs if c.algorithm_options.get("sam") is False}
    call("sweep", tmp_path / "sweep.toml", "--out", tmp_path / "runs")
    assert groups(tmp_path / "runs") == ["FedAvg", "FedSMOO", "Ours (beta=1)", "Ours (beta=10)"]
    assert len(list((tmp_path / "runs").glob(f"*/{LABEL}"))) == 4


@pytest.mark.parametrize("changes", [{"model": "x" * 300}, {"dataset": "ä" * 200}, {"clients": 10**308}])
def test_a_name_of_long_settings_fits_a_file_system(changes: dict[str, str], tmp_path: Path) -> None:
    config = Config(**{"algorithm": "fedavg", "dataset": "digits", "model": "softmax", **changes})
    names = {run_name(config), run_name(config.replace(seed=1))}
    for name in names:
        (tmp_path / f"{name}-2.json.12.part").write_text("")
    assert len(names) == len(list(tmp_path.iterdir())) == 2


def test_a_name_that_fits_is_as_it_was() -> None:
    assert f"-{'m' * 150}-seed0-" in run_name(Config(algorithm="fedavg", dataset="digits", model="m" * 150))
    assert folder_stem("a" * 220) == "a" * 220
    assert folder_stem("a" * 300) != folder_stem("a" * 301)
    assert len(folder_stem("a" * 300)) == 220
