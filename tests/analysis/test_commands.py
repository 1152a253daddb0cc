"""``fedsmoo analyse`` on a real run: what is written is what the functions measure and what the run recorded."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fedsmoo.analysis.functions.objective import Objective
from fedsmoo.cli import app
from fedsmoo.core.errors import FedsmooError
from fedsmoo.pages.gather import gather
from fedsmoo.runs.results.finished import open_finished

SETTINGS = (
    "--model softmax --dtype float64 --rounds 3 --clients 8 --cohort 4 --local-steps 4 --engine serial --device cpu"
)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    for algorithm in ("fedavg", "fedsmoo"):
        run("run", "--algorithm", algorithm, *SETTINGS.split(), "--out", str(root / algorithm))
    return [root / "fedavg", root / "fedsmoo"]


def written(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "analysis" / f"{name}.json").read_text())


def test_the_opened_model_is_the_recorded_one(folders: list[Path]) -> None:
    saved = open_finished(folders[1], "cpu")
    summary = json.loads((folders[1] / "summary.json").read_text())
    scores = saved.task.evaluate(saved.w)
    accuracy, loss = scores.lead, scores.loss
    assert (accuracy, loss) == pytest.approx((summary["test_accuracy"], summary["test_loss"]), rel=1e-12)


def test_landscape_at_the_origin_is_the_recorded_loss(folders: list[Path]) -> None:
    run("analyse", "landscape", str(folders[0].parent), "--points", "5", "--device", "cpu")
    for folder in folders:
        found = written(folder, "landscape")
        summary = json.loads((folder / "summary.json").read_text())
        assert found["loss"][2][2] == pytest.approx(summary["test_loss"], rel=1e-12)
        assert found["accuracy"][2][2] == pytest.approx(summary["test_accuracy"], rel=1e-12)
        assert (found["part"], found["samples"]) == ("test", 359)


def test_hessian_of_softmax_regression_in_closed_form(folders: list[Path]) -> None:
    """For softmax regression the trace is the mean of (|x|^2 + 1) * sum_k p_k (1 - p_k)."""
    run("analyse", "hessian", str(folders[0]), "--top", "2", "--probes", "300", "--density", "10", "--device", "cpu")
    found, saved = written(folders[0], "hessian"), open_finished(folders[0], "cpu")
    x = saved.task.data.x_train.double().flatten(1)
    p = torch.softmax(saved.task.model.export(saved.w)(x), 1)
    true = ((x.square().sum(1) + 1) * (p * (1 - p)).sum(1)).mean().item()
    assert found["trace"] == pytest.approx(true, abs=4 * found["trace_error"])
    assert found["trace_error"] < 0.01 * true
    assert found["eigenvalues"][0] > found["eigenvalues"][1] > 0
    assert np.trapezoid(found["density"]["values"], found["density"]["grid"]) == pytest.approx(1, abs=0.02)


def test_planes_lines_and_the_rest_reach_the_page(folders: list[Path]) -> None:
    one, two = map(str, folders)
    run("analyse", "plane", one, two, "--points", "5", "--device", "cpu")
    run("analyse", "line", one, two, "--points", "7", "--device", "cpu")
    run("analyse", "sharpness", one, two, "--steps", "3", "--device", "cpu")
    run("analyse", "bound", one, two, "--device", "cpu")
    run("analyse", "fairness", one, two, "--device", "cpu")
    run("analyse", "consistency", two, "--device", "cpu")
    line = written(folders[0], "line")
    summaries = [json.loads((f / "summary.json").read_text()) for f in folders]
    assert (line["t"][1], line["t"][5]) == (0.0, 1.0)
    assert [line["loss"][1], line["loss"][5]] == pytest.approx([s["test_loss"] for s in summaries])
    page = {r["method"]: r["analysis"] for r in gather(folders)["runs"]}
    assert {"plane", "line", "sharpness", "bound", "fairness"} <= set(page["FedAvg"])
    second = page["FedAvg"]["plane"]["models"][1]
    assert (second["name"], second["a"]) == ("fedsmoo", 1)
    assert abs(second["b"]) < 1e-12
    assert page["FedSMOO"]["consistency"]["dual_gap_lam"] < 1e-12
    assert page["FedSMOO"]["sharpness"]["sharpness"] > 0


@pytest.mark.parametrize("points", ["2", "7", "51"])
def test_a_line_has_the_models_and_the_middle_among_its_points(folders: list[Path], points: str) -> None:
    one, two = folders
    said = run("analyse", "line", str(one), str(two), "--points", points, "--device", "cpu")
    found, models = written(one, "line"), [open_finished(f, "cpu") for f in folders]
    true = [models[0].task.evaluate((1 - t) * models[0].w + t * models[1].w).loss for t in (0.0, 0.5, 1.0)]
    assert [found["loss"][found["t"].index(t)] for t in (0.0, 0.5, 1.0)] == pytest.approx(true, rel=1e-9)
    assert all(f"{loss:.4f}" in said for loss in true)
    assert len(found["t"]) <= int(points) + 3


def test_consistency_takes_the_run_s_own_radius_and_says_where_there_is_nothing(
    folders: list[Path], tmp_path: Path
) -> None:
    words = ["--algorithm", "fedsmoo", *SETTINGS.split(), "--set", "r=0.02"]
    run("run", *words, "--out", str(tmp_path / "small"))
    run("analyse", "consistency", str(tmp_path / "small"), "--device", "cpu")
    found, saved = written(tmp_path / "small", "consistency"), open_finished(tmp_path / "small", "cpu")
    server, rows = saved.vectors()
    true = []
    for i in sorted(rows):
        x, y = saved.task.data.x_train[saved.indices[i]], saved.task.data.y_train[saved.indices[i]]
        g = Objective(saved.task, x, y).gradient(server.w) - rows[i]["mu"] - server.s
        true.append((0.02 * g / g.norm() - server.s).norm().item() / 0.02)
    assert found["perturbation_distance_mean"] == pytest.approx(np.mean(true))
    assert (found["radius"], found["clients_met"], found["clients_taken"]) == (0.02, len(rows), len(rows))
    said = run("analyse", "consistency", str(folders[0]), "--device", "cpu")
    assert said == "fedavg: nothing to measure: the clients of fedavg keep no vectors\n"
    said = run("analyse", "privacy", str(tmp_path / "small"), "--device", "cpu")
    assert said == "small: nothing to measure: the run is not private (--privacy client is)\n"
    assert not (folders[0] / "analysis" / "consistency.json").exists()


def test_what_cannot_be_measured_is_said_in_one_line(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FedsmooError, match="odd number"):
        run("analyse", "landscape", str(folders[0]), "--points", "4", "--device", "cpu")
    for span in ("nan", "-1", "inf"):
        with pytest.raises(FedsmooError, match=r"span is .* must be above 0"):
            run("analyse", "landscape", str(folders[0]), "--span", span, "--device", "cpu")
    for command in ("sharpness", "bound"):
        with pytest.raises(FedsmooError, match="the radius is nan"):
            run("analyse", command, str(folders[0]), "--radius", "nan", "--device", "cpu")
    diverged = tmp_path / "diverged"
    shutil.copytree(folders[0], diverged)
    weights = {n: v * math.nan for n, v in load_file(diverged / "model.safetensors").items()}
    save_file(weights, diverged / "model.safetensors")
    (diverged / "summary.json").unlink()  # which holds the SHA-256 of the model as it was
    for words in (["landscape", str(diverged)], ["line", str(folders[0]), str(diverged)]):
        with pytest.raises(FedsmooError, match="has the run diverged"):
            run("analyse", *words, "--points", "3", "--device", "cpu")
    with pytest.raises(FedsmooError, match="not a folder"):
        run("analyse", "hessian", str(tmp_path / "none"))
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        shutil.copy(folders[0] / name, unfinished)
    with pytest.raises(FedsmooError, match=r"no model\.safetensors"):
        run("analyse", "fairness", str(unfinished))
