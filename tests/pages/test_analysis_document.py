"""docs/analysis.md says what was measured: its tables, its sentences and its commands."""

from __future__ import annotations

import glob
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsmoo.cli import app
from fedsmoo.paper.experiments import published

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "analysis.md").read_text()
NAMES = {"fedsam": "FedSAM", "fedsmoo": "FedSMOO"}


def measured(number: str) -> dict:
    return json.loads((ROOT / "results" / "gpu" / f"analysis_{number}.json").read_text())["models"]


def row(start: str, table: str) -> list[str]:
    block = TEXT.partition(f"<!-- gpu:{table} -->")[2].partition("<!-- /gpu -->")[0]
    (line,) = (li for li in block.splitlines() if li.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def commands() -> list[list[str]]:
    """The words after ``fedsmoo`` of each figure's command."""
    found = re.findall(r"^fedsmoo (figure (?:.*\\\n)*.*)", TEXT, re.MULTILINE)
    return [shlex.split(c.replace("\\\n", " ")) for c in found]


def said_in(svg: Path) -> set[str]:
    """The words of a figure, which are drawn as outlines with the text itself in a comment beside them."""
    return {w for w in re.findall(r"<!-- (.*?) -->", svg.read_text()) if re.search("[a-zA-Z]", w)}


@pytest.mark.parametrize(
    ("number", "name", "split"),
    [("01", "fedsam", "0.1"), ("01", "fedsmoo", "0.1"), ("06", "fedsam", "0.6"), ("06_cpu", "fedsmoo", "0.6")],
)
def test_flatness_is_what_the_files_and_the_paper_say(number: str, name: str, split: str) -> None:
    h, paper = measured(number)[name]["hessian"], published()["flatness"]
    k = paper["columns"].index(f"{NAMES[name]} dirichlet-{split}")
    cells = row(f"{NAMES[name]}, dirichlet-{split}", "flatness")
    shown = [float(c) for cell in cells[1:8] for c in cell.replace(",", "").split(" ± ")]
    expected = [
        h["samples"], h["eigenvalues"][0], paper["hessian_top_eigenvalue"][k], h["trace"], h["trace_error"],
        paper["hessian_trace"][k], h["seconds_eigenvalues"], h["seconds_trace"],
    ]  # fmt: skip
    assert shown == pytest.approx(expected, abs=0.5, rel=0.004)


def test_sentences_about_the_measurements_hold() -> None:
    sam, smoo = (measured("01")[name] for name in ("fedsam", "fedsmoo"))
    a, b = sam["hessian"], smoo["hessian"]
    assert "less than a sixth of FedSAM's" in " ".join(TEXT.split())
    assert max(b["eigenvalues"][0] / a["eigenvalues"][0], b["trace"] / a["trace"]) < 1 / 6
    assert a["loss"] == pytest.approx(b["loss"], rel=0.02)
    paper = published()["flatness"]
    ratios = np.array(paper["hessian_trace"]) / np.array(paper["hessian_top_eigenvalue"])
    assert ratios.min() >= 19
    assert ratios.max() <= 25.1
    every = [m["hessian"] for number in ("01", "06", "06_cpu") for m in measured(number).values()]
    assert min(h["trace"] / h["eigenvalues"][0] for h in every) >= 54
    one, two = (np.array(m["landscape"]["loss"]) for m in (sam, smoo))
    assert 0.78 < (two < one).mean() < 0.82
    assert one[25, 25] - two[25, 25] == pytest.approx(0.25, abs=0.005)
    assert one[25, 25] == sam["landscape"]["centre"]
    rises = [row(f"{name}, dirichlet-0.1", "landscape")[3:] for name in ("FedSAM", "FedSMOO")]
    near, far = zip(*((np.array(r[:2], float), np.array(r[2:], float)) for r in rises), strict=True)
    assert np.abs(near[0] - near[1]).max() < 0.01
    assert (far[1] > 1.1 * far[0]).all()
    assert published()["settings"]["weight_decay"] * 11_181_642 > max(paper["hessian_trace"])


def test_commands_of_the_figures_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = (ROOT / "Makefile").read_text().replace("\\\n", " ").split()
    outs = []
    for words in commands():
        assert " ".join(words) in " ".join(made)  # make figures does the same
        expanded = [w for word in words for w in (sorted(glob.glob(word)) if "*" in word else [word])]
        out = expanded.index("--out") + 1
        outs.append(expanded[out])
        expanded[out] = str(tmp_path / Path(expanded[out]).name)
        done = CliRunner().invoke(app, expanded)
        assert done.exit_code == 0, done.output
        assert f"]({Path(outs[-1]).relative_to('docs')})" in TEXT
        assert said_in(Path(expanded[out])) == said_in(ROOT / outs[-1]), "run make figures"
    assert sorted(outs) == ["docs/figures/curves.svg", "docs/figures/landscape.svg"]
