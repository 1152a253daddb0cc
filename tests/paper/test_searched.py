"""The best of a search by samples held out, and what ``fedsmoo show`` says of it."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsmoo.cli import app
from fedsmoo.paper.experiments import experiment
from fedsmoo.paper.searched import as_toml, recommended, tried, winners
from fedsmoo.sweeps.results import Measured, from_json

from .small import fake_result

ROOT = Path(__file__).parents[2]
COLUMN = "10%-of-100 cifar10.dirichlet-0.1"


def runs(count: int, method: str = "FedSAM") -> list[Measured]:
    """Radii 0.1, 0.2, ... and test accuracies 71, 72, ...: the second is best on samples held out, at the end."""
    (cell,) = experiment("accuracy", [COLUMN], [method]).cells
    out = []
    for k in range(1, count + 1):
        options = {**cell.config.algorithm_options, "rho": k / 10}
        found = fake_result(cell.config.replace(holdout=0.1, algorithm_options=options), 70 + k)
        held = [0.9] * 790 + [0.6 - 0.05 * abs(k - 2)] * 10
        out.append(dataclasses.replace(found, curve={**found.curve, "validation_accuracy": held}))
    return out


def test_the_best_is_by_the_samples_held_out_and_not_by_the_test_set() -> None:
    found = tried([*runs(6), fake_result(experiment("accuracy", [COLUMN], ["FedAvg"]).cells[0].config, 80)])
    assert [t.settings for t in found[:2]] in ([{"rho": 0.2}, {"rho": 0.1}], [{"rho": 0.2}, {"rho": 0.3}])
    assert {t.algorithm for t in found} == {"fedsam"}  # what held nothing out is no part of it
    (task,) = winners(found)["fedsam"].values()
    assert task["settings"] == {"rho": 0.2}
    assert task["tried"] == 6
    assert task["validation"] == pytest.approx(60)
    assert task["test"] == pytest.approx(72 * (1 - 4.5 / 800), abs=0.01)


def test_settings_that_are_lists_are_told_apart_too() -> None:
    two = runs(2)
    for run, sizes in zip(two, ([1, 2], [1, 3]), strict=True):
        run.config.algorithm_options.update(rho=0.5, sizes=sizes)
    assert [t.settings for t in tried(two)] == [{"sizes": [1, 3]}, {"sizes": [1, 2]}]


def test_an_option_that_one_run_leaves_out_is_told_of_the_others() -> None:
    plain, other = runs(2)
    del plain.config.algorithm_options["rho"]
    assert [t.settings for t in tried([plain, other])] == [{"rho": 0.2}, {}]


def test_nothing_is_recommended_before_the_budget_is_spent() -> None:
    assert winners(tried(runs(5))) == {}
    assert recommended("fedavg") == []


def test_the_file_is_what_the_results_say() -> None:
    found = winners(tried(from_json(path) for path in sorted((ROOT / "results" / "search").glob("*.json"))))
    kept = (ROOT / "src" / "fedsmoo" / "paper" / "searched.toml").read_text()
    assert kept == as_toml(found), "run python -m benchmarks.campaign.search"
    assert tomllib.loads(kept) == found


def test_show_says_it() -> None:
    said = CliRunner().invoke(app, ["show", "mofedsam"]).output
    (line,) = recommended("mofedsam")[-1:]
    assert line in said
    assert "the best of 6 tried" in line
    assert "recommended" not in CliRunner().invoke(app, ["show", "qfedavg"]).output
