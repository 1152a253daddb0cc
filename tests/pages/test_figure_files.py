"""Figures from files: the curve in a run's result, and surfaces of models that were measured together."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsmoo.cli import app
from fedsmoo.core.errors import FedsmooError
from fedsmoo.metrics.quantity import quantity
from fedsmoo.pages.figures import draw as figures
from fedsmoo.pages.figures.draw import Look
from fedsmoo.pages.figures.sources import drawable, find
from fedsmoo.pages.metrics import lead_words
from fedsmoo.runs.results.curves import hanning
from fedsmoo.sweeps.results import from_folder, to_json

from .folders import accuracy, run_folder, surface

ROOT = Path(__file__).parents[2]
ANALYSIS = ROOT / "results" / "gpu" / "analysis_01.json"
RESULT = next(iter(sorted((ROOT / "results").glob("scaffold-cifar10-dirichlet-0.1-10of100-*-seed0-*.json"))))


def lines(figure: Any, panel: int = 0) -> dict[str, np.ndarray]:
    """The drawn lines that have a name."""
    named = [li for li in figure.axes[panel].lines if not li.get_label().startswith("_")]
    return {li.get_label(): np.asarray(li.get_ydata(), float) for li in named}


def result_file(root: Path, name: str, *words: Any, **more: Any) -> Path:
    """The result of a run as a file, its folder left behind under another name."""
    path = root / f"{name}.json"
    path.write_text(to_json(from_folder(run_folder(root / "folders", name, *words, **more))))
    return path


@pytest.mark.parametrize("window", [3, 20])
def test_smoothed_curve_of_a_result_is_a_hand_computed_hanning_window(window: int) -> None:
    measured = [100 * a for a in json.loads(RESULT.read_text())["curve"]["test_accuracy"]]
    figure = figures.curves(drawable(find([RESULT])), Look(smooth=window), "acc", "accuracy", 100)
    around = range(-(window // 2), window // 2 + 1)
    weights = [math.cos(math.pi * k / (window + 1)) ** 2 for k in around]
    if window == 3:
        assert weights == pytest.approx([0.5, 1.0, 0.5])
    smoothed = []
    for t in range(len(measured)):
        inside = [measured[min(max(t + k, 0), len(measured) - 1)] for k in around]
        smoothed.append(sum(w * v for w, v in zip(weights, inside, strict=True)) / sum(weights))
    np.testing.assert_allclose(lines(figure)["SCAFFOLD"], smoothed, rtol=1e-6)
    faint = [li for li in figure.axes[0].lines if li.get_label().startswith("_")]
    np.testing.assert_allclose(faint[0].get_ydata(), measured, rtol=1e-6)
    assert faint[0].get_alpha() < 0.5 < figure.axes[0].lines[0].get_linewidth()


@pytest.mark.parametrize("window", [4, 5, 20])
def test_a_window_shifts_no_curve(window: int) -> None:
    """A straight line stays where it is, a single peak stays in its round and spreads alike to both sides."""
    line, peak = np.arange(60.0), np.eye(61)[30]
    inside = slice(window // 2, -(window // 2))
    np.testing.assert_allclose(hanning(line, window)[inside], line[inside], rtol=1e-12)
    np.testing.assert_allclose(hanning(peak, window), hanning(peak, window)[::-1], atol=1e-15)
    assert hanning(peak, window).argmax() == 30


def test_a_panel_for_each_task_and_one_look_for_a_method(tmp_path: Path) -> None:
    paths = [
        result_file(tmp_path, "a", "fedavg", 0, 10, partition="dirichlet", u=0.1),
        result_file(tmp_path, "b", "fedsmoo", 0, 10, partition="dirichlet", u=0.1),
        result_file(tmp_path, "c", "fedsmoo", 1, 10, partition="pathological", c=3),
    ]
    figure = figures.curves(drawable(find(paths)), Look(), "acc", "accuracy", 1)
    assert [axes.get_title() for axes in figure.axes] == ["dirichlet-0.1", "pathological-3"]
    assert [sorted(lines(figure, k)) for k in (0, 1)] == [["FedAvg", "FedSMOO"], ["FedSMOO"]]
    for panel, seed in ((0, 0), (1, 1)):  # not the mean of both
        expected = [accuracy("fedsmoo", seed, t, 10) for t in range(1, 11)]
        np.testing.assert_allclose(lines(figure, panel)["FedSMOO"], expected, rtol=1e-4)
    drawn = [li for axes in figure.axes for li in axes.lines if li.get_label() == "FedSMOO"]
    assert len({(li.get_color(), li.get_marker(), str(li.get_linestyle())) for li in drawn}) == 1


def test_seeds_from_a_file_and_from_a_folder_are_one_line(tmp_path: Path) -> None:
    file = result_file(tmp_path, "a", "fedsam", 0, 10, model="mlp", lr=0.05)
    folder = tmp_path / "whole"
    run_folder(folder, "b", "fedsam", 1, 10, model="mlp", lr=0.05)
    config = json.loads(file.read_text())["config"]
    plain = {k: v for k, v in config.items() if not isinstance(v, dict)}
    toml = "".join(f"{k} = {json.dumps(v)}\n" for k, v in {**plain, "seed": 1}.items())
    (folder / "b" / "config.toml").write_text(toml)
    data = drawable(find([file, folder]))
    assert [(r["group"], r["seed"]) for r in data["runs"]] == [("FedSAM", "1"), ("FedSAM", "0")]
    figure = figures.curves(data, Look(), "acc", "accuracy", 1)
    expected = [accuracy("fedsam", 0, t, 10) / 2 + accuracy("fedsam", 1, t, 10) / 2 for t in range(1, 11)]
    np.testing.assert_allclose(lines(figure)["FedSAM"], expected, rtol=1e-4)


def test_seeds_that_another_sweep_named_otherwise_are_one_line(tmp_path: Path) -> None:
    """Seed 1 of FedAvg was run as the first row of an ablation; what only that sweep has keeps its name."""
    paths = [result_file(tmp_path, f"s{seed}", "fedavg", seed, 10) for seed in (0, 1)]
    paths.append(result_file(tmp_path, "other", "fedavg", 0, 10, lr=0.05))
    for path, label in zip(paths[1:], ("none", "slow"), strict=True):
        path.write_text(json.dumps({**json.loads(path.read_text()), "label": label}))
    runs = drawable(find(paths))["runs"]
    assert [(r["group"], r["seed"]) for r in runs] == [("FedAvg", "0"), ("FedAvg", "1"), ("slow", "0")]


@pytest.mark.parametrize(("axis", "unit"), [("rounds", 1.0), ("bytes", 3.0)])
def test_rounds_to_every_target(tmp_path: Path, axis: str, unit: float) -> None:
    paths = [result_file(tmp_path, f"s{seed}", "fedavg", seed, 40) for seed in (0, 1)]
    figure = figures.rounds_to_target(drawable(find(paths)), Look(axis=axis))
    line = figure.axes[0].lines[0]
    targets = np.asarray(line.get_xdata(), float)
    assert targets[-1] == 79.5  # 80 (1 - exp(-6)) is the most that seed 0 reaches
    for target, spent in zip(targets, np.asarray(line.get_ydata(), float), strict=True):
        first = []
        for seed in (0, 1):
            reached = (t for t in range(1, 41) if 100 * accuracy("fedavg", seed, t, 40) >= target)
            first.append(next(reached))
        assert spent == pytest.approx(unit * sum(first) / 2)


def test_rounds_to_a_target_show_the_range_of_seeds(tmp_path: Path) -> None:
    """Seed 1 needs twice the rounds of seed 0 and stops at half of its accuracy: there the line and its shade end."""
    data = drawable(find([result_file(tmp_path, f"s{seed}", "fedavg", seed, 20) for seed in (0, 1)]))
    for run, step in zip(sorted(data["runs"], key=lambda r: r["seed"]), (0.02, 0.01), strict=True):
        run["acc"] = [step * t for t in range(1, 21)]
    (axes,) = figures.rounds_to_target(data, Look()).axes
    targets, spent = (np.asarray(d, float) for d in (axes.lines[0].get_xdata(), axes.lines[0].get_ydata()))
    assert (targets[0], targets[-1]) == (2, 20)
    assert spent[-1] == (10 + 20) / 2
    (shade,) = axes.collections
    corners = shade.get_paths()[0].vertices
    assert {tuple(c) for c in corners if c[0] == 20} == {(20, 10), (20, 20)}
    one = figures.rounds_to_target({"runs": data["runs"][:1]}, Look())
    assert not one.axes[0].collections


def test_many_megabytes_are_gigabytes(tmp_path: Path) -> None:
    data = drawable(find([result_file(tmp_path, "one", "fedavg", 0, 40)]))
    data["runs"][0]["up"] = [1e9] * 40  # and 2 MB down
    last = next(
        t for t in range(1, 41) if 100 * accuracy("fedavg", 0, t, 40) >= 79.5
    )  # the round of the hardest target
    look = Look(axis="bytes")
    over, to = figures.curves(data, look, "acc", "accuracy"), figures.rounds_to_target(data, look)
    assert over.axes[0].get_xlabel() == to.axes[0].get_ylabel() == "gigabytes sent"
    assert max(over.axes[0].lines[0].get_xdata()) == pytest.approx(40 * 1.002)
    assert max(to.axes[0].lines[0].get_ydata()) == pytest.approx(last * 1.002)


@pytest.mark.parametrize(("metric", "higher"), [("mse", False), ("f1", True), ("perplexity", False)])
def test_rounds_to_targets_of_other_metrics(tmp_path: Path, metric: str, higher: bool) -> None:
    """Every target that is drawn was first reached in the round beside it; less is better where it is."""
    values = [0.9 ** (1 + t) * (1 + 0.3 * (-1) ** t) * 5 for t in range(30)]  # down, and up in between
    values = [1 - v / 5 for v in values] if higher else values
    data = drawable(find([result_file(tmp_path, "one", "fedavg", 0, 30)]))
    data["runs"][0] |= {"acc": values, "lead": lead_words(quantity(metric), quantity(metric))}
    figure = figures.rounds_to_target(data, Look())
    (axes,) = figure.axes
    line = axes.lines[0]
    targets, spent = (np.asarray(d, float) for d in (line.get_xdata(), line.get_ydata()))
    assert len(targets) == 101
    assert targets[-1] == pytest.approx(max(values) if higher else min(values), rel=1e-3)
    for target, at in zip(targets[:-1], spent[:-1], strict=True):
        good = [k + 1 for k, v in enumerate(values) if (v >= target - 1e-8 if higher else v <= target + 1e-8)]
        assert at == good[0]
    left, right = axes.get_xlim()
    assert bool(left < right) is higher  # harder targets are to the right
    assert axes.get_xlabel() == f"target test {quantity(metric).label}"


def points(collection: Any) -> np.ndarray:
    """All corners of a drawn surface or grid, as rows of (a, b, height)."""
    if hasattr(collection, "_segments3d"):
        return np.concatenate([np.asarray(s, float) for s in collection._segments3d])
    if hasattr(collection, "_faces"):
        return np.asarray(collection._faces, float).reshape(-1, 3)
    return np.asarray(collection._vec, float)[:3].T  # matplotlib before 3.10


def held_to_file(drawn: np.ndarray, found: dict[str, Any]) -> None:
    at = {(round(a, 6), round(b, 6)): v for a, row in zip(found["a"], found["loss"], strict=True)
          for b, v in zip(found["b"], row, strict=True)}  # fmt: skip
    expected = [at[round(a, 6), round(b, 6)] for a, b, _ in drawn]
    np.testing.assert_allclose(drawn[:, 2], expected, rtol=1e-4)
    assert {(-1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)} <= {(a, b) for a, b, _ in drawn}


def test_surfaces_are_those_of_the_file() -> None:
    models = json.loads(ANALYSIS.read_text())["models"]
    data = drawable(find([ANALYSIS]))
    beside = figures.landscape(data, Look(width="page", apart=True))
    assert [axes.get_title().partition(":")[0] for axes in beside.axes] == [
        "test loss of FedSAM",
        "test loss of FedSMOO",
    ]
    assert len({axes.get_zlim() for axes in beside.axes}) == 1
    for axes, name in zip(beside.axes, ("fedsam", "fedsmoo"), strict=True):
        found = models[name]["landscape"]
        corners = points(next(c for c in axes.collections if type(c).__name__ == "Poly3DCollection"))
        held_to_file(corners, found)
        assert [0.0, 0.0] in corners[:, :2].tolist()
        assert f"{found['centre']:.2f} at the centre" in axes.get_title()
    three = figures.landscape({**data, "runs": [*data["runs"], data["runs"][0]]}, Look(width="page", apart=True))
    assert [axes.get_title().count("\n") for axes in (*beside.axes, *three.axes)] == [0, 0, 1, 1, 1]  # narrow panels
    over = figures.landscape(data, Look())
    assert over.axes[0].get_title() == "test loss of FedSAM, and of FedSMOO as a grid"
    for kind, name in (("Poly3DCollection", "fedsam"), ("Line3DCollection", "fedsmoo")):
        drawn = next(c for c in over.axes[0].collections if type(c).__name__ == kind)
        held_to_file(points(drawn), models[name]["landscape"])


def test_a_measurement_beside_a_run_names_its_folder(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "a", "fedsmoo", analysis={"landscape": surface(2.0)})
    assert find([folder / "analysis" / "landscape.json"]).folders == [folder]


def test_the_command_takes_all_json_files_and_says_what_it_left_out(tmp_path: Path) -> None:
    for seed in (0, 1):
        result_file(tmp_path, f"s{seed}", "fedavg", seed, 10)
    (tmp_path / "cpu.json").write_text('{"device": "any"}')
    words = ["figure", "accuracy", *map(str, sorted(tmp_path.glob("*.json"))), "--out", str(tmp_path / "x.svg")]
    done = CliRunner().invoke(app, [*words, "--where", "seed=1"])
    assert done.exit_code == 0, done.output
    assert f"left out, no run in it: {tmp_path / 'cpu.json'}" in done.output
    svg = (tmp_path / "x.svg").read_text()
    ElementTree.fromstring(svg)
    assert not re.search(r' d="[^"]*\.\d{3}', svg)
    assert [r["seed"] for r in drawable(find([tmp_path / "folders", tmp_path]), ["seed=1"])["runs"]] == ["1", "1"]
    assert [r["seed"] for r in drawable(find([tmp_path]), ["seed!=1"])["runs"]] == ["0", "0"]


def test_the_command_names_the_runs_that_have_nothing_to_draw(tmp_path: Path) -> None:
    """A seed that diverged in its first round would be left out of the mean without a word."""
    for seed in range(3):
        run_folder(tmp_path / "runs", f"fedavg-{seed}", "fedavg", seed, finished=seed != 2)
    (tmp_path / "runs" / "fedavg-2" / "metrics.jsonl").write_text("")
    for name in ("accuracy", "train-loss", "rounds"):
        made = CliRunner().invoke(app, ["figure", name, str(tmp_path / "runs"), "--out", str(tmp_path / "a.png")])
        assert made.exit_code == 0
        assert "left out, it has measured nothing that is drawn: fedavg-2" in made.output
    made = CliRunner().invoke(app, ["figure", "heatmap", str(tmp_path / "runs"), "--out", str(tmp_path / "a.png")])
    assert "left out" not in made.output


def test_a_legend_below_stays_inside(tmp_path: Path) -> None:
    for u in (0.1, 0.6):
        for k in range(7):
            run_folder(tmp_path, f"{u}-{k}", "fedavg", 0, u=u, weight_decay=k / 1000, lr_decay=0.9 + k / 1000)
    drawn = figures.curves(drawable(find([tmp_path])), Look("page"), "acc", "accuracy")
    drawn.draw_without_rendering()
    (legend,) = drawn.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= drawn.bbox.x1
    assert len(legend.get_texts()) == 7


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("tasks", "lines_each", "width"), [(1, 20, "column"), (7, 2, "column"), (7, 9, "page")])
def test_many_lines_and_panels_make_a_figure_larger_not_smaller(
    tmp_path: Path, tasks: int, lines_each: int, width: str
) -> None:
    for k in range(tasks * lines_each):
        run_folder(tmp_path, str(k), "fedavg", 0, 5, u=0.1 + k % tasks, lr=0.1 * (1 + k // tasks))
    drawn = figures.curves(drawable(find([tmp_path])), Look(width), "acc", "accuracy")
    drawn.draw_without_rendering()
    (legend,) = drawn.legends
    named = [li for axes in drawn.axes[:1] for li in axes.lines]
    assert len({(li.get_color(), str(li._unscaled_dash_pattern), li.get_marker()) for li in named}) == lines_each
    for axes in drawn.axes:
        box = axes.get_window_extent()
        assert box.height / drawn.dpi > 0.7
        assert not legend.get_window_extent().overlaps(axes.get_tightbbox())
    for one, two in itertools.combinations(drawn.axes, 2):
        assert not one.title.get_window_extent().overlaps(two.title.get_window_extent())


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    good = result_file(tmp_path, "a", "fedavg", 0, 5)
    bad, other, short = tmp_path / "bad.json", tmp_path / "other.json", tmp_path / "short.json"
    bad.write_text(good.read_text()[:300])
    other.write_text("{}")
    value = json.loads(good.read_text())
    value["curve"]["test_accuracy"].pop()
    short.write_text(json.dumps(value))
    for paths, where, words in (
        ([bad], [], "cut or damaged"),
        ([other], [], "no run in"),
        ([short], [], "differ in length"),
        ([tmp_path / "none.json"], [], "not a folder"),
        ([good], ["seed"], "say setting=value"),
        ([good], ["sed=0"], "did you mean 'seed'"),
        ([good], ["seed=7"], "no run has that; there is 0"),
    ):
        with pytest.raises(FedsmooError, match=words):
            drawable(find(paths), where)


def test_a_result_that_was_superseded_is_marked(tmp_path: Path) -> None:
    """It is no seed beside the one that took its place, and has its mark where it stands alone."""
    path = result_file(tmp_path, "now", "fedavg", 0)
    (tmp_path / "superseded").mkdir()
    old = {**json.loads(path.read_text()), "superseded": {"reason": "a wrong rate"}}
    (tmp_path / "superseded" / "now.json").write_text(json.dumps(old))
    both = drawable(find([tmp_path / "now.json", tmp_path / "superseded"]))
    assert [run["group"] for run in both["runs"]] == ["FedAvg", "FedAvg (superseded)"]
    alone = drawable(find([tmp_path / "superseded"]))
    assert list(lines(figures.scores(alone, Look()))) == ["FedAvg (superseded)"]
