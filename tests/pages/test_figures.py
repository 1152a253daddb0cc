"""Figures for papers: what is drawn is what was measured, at the size and in the fonts that were promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.sources import load
from fedsmoo.pages.figures import FIGURES
from fedsmoo.pages.figures import draw as figures
from fedsmoo.pages.figures.base import STYLE
from fedsmoo.pages.figures.draw import DRAWN, Look, write_figure
from fedsmoo.pages.gather import gather
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients
from fedsmoo.runs.results.curves import hanning

from .folders import accuracy, measurements, run_folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("runs")
    made = [
        run_folder(root, f"{a}-{seed}", a, seed, rounds=30, analysis=measurements(2.0) if seed == 0 else {})
        for a in ("fedavg", "fedsmoo")
        for seed in (0, 1)
    ]
    return gather(made)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("sweep")
    runs = [run_folder(root, f"{lr}-{seed}", "fedavg", seed, 20, lr=lr) for lr in (0.5, 0.05, 10.0) for seed in (0, 1)]
    return gather(runs)


def test_every_figure_that_help_names_can_be_drawn() -> None:
    assert list(DRAWN) == list(FIGURES)


@pytest.mark.parametrize("name", [n for n in FIGURES if n not in ("sensitivity", "ranks")])
def test_every_figure_is_drawn(name: str, data: dict[str, Any], tmp_path: Path) -> None:
    if name in ("heatmap", "totals"):  # which are of one division
        data = {**data, "runs": [r for r in data["runs"] if r["seed"] == "0"]}
    written = write_figure(name, data, tmp_path / f"{name}.png", Look())
    picture = Image.open(written)
    assert picture.width == round(3.25 * 300)  # a column, at 300 dots an inch
    assert len(np.unique(np.asarray(picture.convert("L")))) > 10  # something is on it


@pytest.mark.parametrize("seed", ["0", "1"])
def test_who_holds_what_is_shown_of_the_chosen_runs(seed: str, data: dict[str, Any]) -> None:
    """It was that of the first folder, whatever --where said; runs of several divisions cannot share a picture."""
    chosen = {**data, "runs": [r for r in data["runs"] if r["seed"] == seed]}
    config = Config(seed=int(seed), clients=int(chosen["runs"][0]["config"]["clients"]))
    digits = load("digits")
    held = make_clients(config, digits)
    counts = [np.bincount(digits.y_train.numpy()[i], minlength=10) for i in held]
    np.testing.assert_array_equal(figures.the_partition(chosen)[0], np.stack(counts))
    with pytest.raises(FedsmooError, match="divide their data in 2 ways"):
        figures.the_partition(data)


@pytest.mark.parametrize("every", [1, 5])
def test_a_window_is_in_rounds_however_often_was_evaluated(every: int, tmp_path: Path) -> None:
    """A window of 10 rounds has 10 points, or 2, which smooth nothing."""
    folder = run_folder(tmp_path, "a", "fedavg", 0, 30)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["test_accuracy"] = line["test_accuracy"] if line["round"] % every == 0 else None
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figure = figures.curves(gather([folder]), Look(smooth=10), "acc", "accuracy", 100)
    measured = np.array([100 * accuracy("fedavg", 0, t, 30) for t in range(every, 31, every)])
    want = hanning(measured, 10) if every == 1 else measured
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), want, rtol=1e-4)


def test_a_run_that_has_not_finished_has_no_last_accuracy(tmp_path: Path) -> None:
    done = [run_folder(tmp_path, f"{lr}", "fedavg", 0, 20, lr=lr) for lr in (0.5, 0.1)]
    cut = run_folder(tmp_path, "cut", "fedavg", 1, 20, lr=0.1)
    (cut / "summary.json").unlink()
    lines = (cut / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_text("".join(lines[:3]))
    figure = figures.sensitivity(gather([*done, cut]), Look(over="lr"))
    points = np.array(figure.axes[0].containers[0].lines[0].get_ydata(), float)
    np.testing.assert_allclose(points, 2 * [100 * accuracy("fedavg", 0, 20, 20)], rtol=1e-4)
    with pytest.raises(FedsmooError, match="none of the runs has finished"):
        figures.sensitivity(gather([cut]), Look(over="lr"))


def test_curves_are_means_over_seeds_smoothed(data: dict[str, Any]) -> None:
    figure = figures.curves(data, Look(smooth=5), "acc", "accuracy", 100)
    line = next(li for li in figure.axes[0].lines if li.get_label() == "FedSMOO")
    each = [np.array([100 * accuracy("fedsmoo", s, t, 30) for t in range(1, 31)]) for s in (0, 1)]
    np.testing.assert_allclose(line.get_ydata(), np.mean([hanning(e, 5) for e in each], axis=0), rtol=1e-4)
    named = [li for li in figure.axes[0].lines if not li.get_label().startswith("_")]
    styles = {li.get_linestyle() for li in named} | {li.get_marker() for li in named}
    assert len(styles) == 4  # two lines told apart by dash and marker


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_ticks_of_few_rounds_are_whole(rounds: int, tmp_path: Path) -> None:
    found = gather([run_folder(tmp_path, "few", "fedavg", 0, rounds=rounds)])
    with mpl.rc_context(STYLE):
        figure = figures.curves(found, Look(), "acc", "accuracy")
        figure.draw_without_rendering()
        assert set(figure.axes[0].get_xticks()) <= {*range(rounds + 2)}


@pytest.mark.parametrize(("axis", "end"), [("rounds", 30), ("bytes", 90.0), ("seconds", 1.5)])
def test_horizontal_axes(data: dict[str, Any], axis: str, end: float) -> None:
    figure = figures.curves(data, Look(axis=axis), "acc", "accuracy")
    assert figure.axes[0].lines[0].get_xdata()[-1] == pytest.approx(end)


def test_sensitivity_orders_numbers_and_averages_seeds(grid: dict[str, Any], tmp_path: Path) -> None:
    figure = figures.sensitivity(grid, Look())
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["0.05", "0.5", "10.0"]
    line = figure.axes[0].containers[0].lines[0]
    expected = 100 * np.mean([accuracy("fedavg", s, 20, 20) for s in (0, 1)])
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [expected] * 3, rtol=1e-4)
    assert write_figure("sensitivity", grid, tmp_path / "s.svg", Look(over="lr")).stat().st_size > 1000


def test_sensitivity_has_a_line_for_each_combination_of_the_other_settings(tmp_path: Path) -> None:
    grid = [(lr, size, seed) for lr in (0.05, 0.5) for size in (10, 50) for seed in (0, 1)]
    runs = [
        run_folder(tmp_path, f"{lr}-{size}-{seed}", "fedavg", seed, size, lr=lr, batch_size=size)
        for lr, size, seed in grid
    ]
    axes = figures.sensitivity(gather(runs), Look(over="lr")).axes[0]
    drawn = dict(zip(axes.get_legend_handles_labels()[1], axes.containers, strict=True))
    assert sorted(drawn) == [f"FedAvg (batch_size={size}, rounds={size})" for size in (10, 50)]
    for size in (10, 50):
        found = drawn[f"FedAvg (batch_size={size}, rounds={size})"].lines[0].get_ydata()
        expected = 100 * np.mean([accuracy("fedavg", s, size, size) for s in (0, 1)])
        np.testing.assert_allclose(np.asarray(found, float), [expected] * 2, rtol=1e-6)


def test_pdf_has_real_fonts_and_no_date(data: dict[str, Any], tmp_path: Path) -> None:
    one = write_figure("accuracy", data, tmp_path / "one.pdf", Look()).read_bytes()
    two = write_figure("accuracy", data, tmp_path / "two.pdf", Look()).read_bytes()
    assert one == two
    assert b"/Type3" not in one


def test_what_cannot_be_drawn_is_said(data: dict[str, Any], grid: dict[str, Any], tmp_path: Path) -> None:
    for name, runs, look, words in (
        ("acuracy", data, Look(), "did you mean 'accuracy'"),
        ("accuracy", data, Look(width="wide"), "unknown width"),
        ("accuracy", data, Look(smooth=-5), "at least 1 round"),
        ("landscape", grid, Look(), "fedsmoo analyse landscape"),
        ("landscape", data, Look(focus="nobody"), "unknown run with a landscape"),
        ("spectrum", grid, Look(), "--density"),
        ("sensitivity", data, Look(), "one setting that varies"),
    ):
        with pytest.raises(FedsmooError, match=words):
            write_figure(name, runs, tmp_path / "x.png", look)
    with pytest.raises(FedsmooError, match=r"end in \.pdf"):
        write_figure("accuracy", data, tmp_path / "x.gif", Look())
