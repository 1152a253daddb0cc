"""The result files of the repository: what they are is known, and none stands for another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedsmoo.paper.experiments import experiment
from fedsmoo.sweeps.bases import read_sweep
from fedsmoo.sweeps.results import FORMAT, SUPERSEDED, collect, from_json

RESULTS = Path(__file__).parents[2] / "results"
FILES = [p for p in sorted(RESULTS.rglob("*.json")) if "gpu" not in p.parts]
RUNS = [p for p in FILES if isinstance(v := json.loads(p.read_text()), dict) and v.get("format") == FORMAT]


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem[-30:])
def test_a_result_says_what_made_it(path: Path) -> None:
    value = json.loads(path.read_text())
    assert not re.fullmatch(r"fedsmoo \d+", value["command"])
    assert re.match(r"fedsmoo (sweep|run|table) |command not recorded; ", value["command"])
    assert value["commit"]
    assert (SUPERSEDED in value) == (path.parent.name == SUPERSEDED and path.name.startswith("fedsmoo"))
    assert path.stem == from_json(path).name


def test_no_two_files_are_one_run_and_every_cell_finds_its_own() -> None:
    said: list[str] = []
    found = collect([], RESULTS, said.append)
    assert said == []
    assert len(found) == len([p for p in RUNS if p.parent == RESULTS])
    cells = [c for c in experiment("accuracy").cells if c.identity in found]
    assert len(cells) == 8 * 16  # every method in every column
    for cell in cells:
        assert found[cell.identity].config.algorithm_options == cell.config.algorithm_options
        assert found[cell.identity].config.rounds == cell.config.rounds == 800


def test_variants_are_of_their_files_and_in_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    root = RESULTS.parent
    monkeypatch.chdir(root)  # the released code's method lies in a file of its own
    files = [*(root / "experiments/campaign").glob("v*.toml"), *(root / "experiments/released").glob("*.toml")]
    made = {c.identity for file in files for c in read_sweep(file).cells}
    kept = {from_json(p).identity for p in (RESULTS / "variants").glob("*.json")}
    assert kept == made
    assert len(kept) == 8 + 7 + 10
    assert not kept & {c.identity for name in ("accuracy", "ablation") for c in experiment(name).cells}


def test_the_search_is_of_its_file_and_in_no_table() -> None:
    made = {c.identity for c in read_sweep(RESULTS.parent / "experiments/campaign/13_search_cifar100.toml").cells}
    kept = {from_json(p).identity for p in (RESULTS / "search").glob("*.json")}
    assert len(made) == 50
    assert len(kept) == 6
    assert kept < made
    assert not kept & {c.identity for c in experiment("accuracy").cells}


def test_the_first_run_counts_and_the_second_is_kept_with_the_reason() -> None:
    name = "fedsmoo-cifar10-dirichlet-0.1-10of100-resnet18_gn-seed0-786a1ae4.json"
    first, second = from_json(RESULTS / name), from_json(RESULTS / SUPERSEDED / name)
    assert [round(100 * max(r.scores), 2) for r in (first, second)] == [79.77, 80.25]
    assert [round(10 * sum(r.scores[-10:]), 2) for r in (first, second)] == [76.96, 78.14]
    assert json.loads((RESULTS / SUPERSEDED / name).read_text())[SUPERSEDED]["reason"].startswith("replaced without a")
