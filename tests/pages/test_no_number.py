"""The page where evaluations found no number, or were far apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from fedsmoo.pages.report import report

from .folders import record, run_folder
from .test_page import Visit


def rewritten(folder: Path, change: Any) -> None:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**row, **change(row)}) + "\n" for row in rows))


def lost(row: dict[str, Any]) -> dict[str, Any]:
    """Led by an error that is 1, and in the last three rounds no number."""
    there = row["round"] <= 17
    loss = 1.0 if there else float("nan")
    return {"test_accuracy": None, "test_loss": loss, "metrics": {"mse": 1.0 if there else None}}


def seldom(row: dict[str, Any]) -> dict[str, Any]:
    there = row["round"] % 4 == 0
    return {} if there else {"test_accuracy": None, "test_loss": None}


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Visit]:
    root = tmp_path / "runs"
    rewritten(run_folder(root, "lost", "fedavg", rounds=20, metrics="mse"), lost)
    rewritten(run_folder(root, "seldom", "fedsam", rounds=40), seldom)
    context = browser.new_context()
    tab = context.new_page()
    tab.set_default_timeout(1000 * PATIENCE)
    seen = Visit(tab, report([root], tmp_path / "page.html"))
    yield seen
    seen.leave()
    context.close()


def test_a_run_that_diverged_has_no_mean_of_the_last_ten(visit: Visit) -> None:
    visit.see("summary")
    visit.tab.select_option(
        "#task", label=[t for t in visit.tab.locator("#task option").all_inner_texts() if "by" in t]
    )
    (row,) = visit.cells("summary-table")
    assert [row[0], *row[3:7]] == ["FedAvg", "no number", "no number", "1.0000", "no number"]


def test_a_window_is_in_rounds(visit: Visit) -> None:
    """Of a curve with a point every fourth round, a window of 13 rounds holds three points."""
    visit.tab.select_option(
        "#task", label=[t for t in visit.tab.locator("#task option").all_inner_texts() if "by" not in t]
    )
    visit.see("curves")
    visit.tab.locator("#smooth").focus()
    for _ in range(6):
        visit.tab.keyboard.press("ArrowRight")
    assert visit.tab.locator("#smooth-value").inner_text() == "13 rounds"
    values = [100 * record("fedsam", 0, t, 40)["test_accuracy"] for t in range(4, 41, 4)]
    # A Hanning window of three points has the weights 1/4, 1/2 and 1/4.
    expected = [0.25 * a + 0.5 * b + 0.25 * c for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    assert visit.plot("accuracy")[-1]["y"][1:-1] == pytest.approx(expected, rel=1e-6)
