"""The tables in README and docs are those that the measured results give."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from patience import PATIENCE

from fedsmoo.experiment.published import experiment, published
from fedsmoo.experiment.results import collect

ROOT = Path(__file__).parents[2]
FOUND = collect([], ROOT / "results")
COLUMNS = ("dirichlet-0.1", "pathological-3", "dirichlet-0.6", "pathological-6")
WORDS = " ".join((ROOT / "docs" / "results.md").read_text().split())


def curves(name: str, column: str = "") -> dict[str, list[float]]:
    """Test accuracies in per cent over rounds, by method."""
    cells = experiment(name, (f"10%-of-100 cifar10.{column}",) if column else ()).cells
    runs = {c.method: FOUND[c.identity].curve["test_accuracy"] for c in cells if c.identity in FOUND}
    return {method: [100 * a for a in run] for method, run in runs.items()}


def test_benchmark_tables_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


def test_ratios_at_equal_precision_stand_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as our round was measured in the precision of the authors' code."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("benchmark_tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert "was not measured" in tables.headline() or (ROOT / "results/gpu/round_tf32.json").is_file()
    for path in (ROOT / "results/gpu").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ours = [r | {"seconds_per_round": 4 * r["seconds_per_round"]} for r in tables.read("round.json")]
    (tmp_path / "round_tf32.json").write_text(json.dumps(ours))
    theirs = tables.read("authors.json")["results"][0]["seconds_per_round"]
    monkeypatch.setattr(tables, "GPU", tmp_path)
    row = next(line for line in tables.headline().splitlines() if line.startswith("| FedAvg"))
    assert row.split("|")[2:7] == [
        f" {f} " for f in (
            f"{ours[0]['seconds_per_round'] / 4:.3f} s", f"{ours[0]['seconds_per_round']:.3f} s", f"{theirs:.1f} s",
            f"{4 * theirs / ours[0]['seconds_per_round']:.0f}x", f"{theirs / ours[0]['seconds_per_round']:.0f}x",
        )
    ]  # fmt: skip
    assert "was not measured" not in tables.headline()


def test_paper_tables_are_up_to_date() -> None:
    words = [sys.executable, "-m", "fedsmoo", "table", "--update", "README.md", "docs/results.md", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_what_was_found_is_what_the_results_say() -> None:
    """Numbers in the prose; tables are checked above."""
    for column in COLUMNS:
        printed = published()["accuracy"]["10%-of-100"]
        at = printed["columns"].index(f"cifar10.{column}")
        gaps = [round(max(run) - printed[method][at], 2) for method, run in curves("accuracy", column).items()]
        words = column.capitalize().replace("-", " ") + " {:+.1f} to {:+.1f}"
        assert words.format(min(gaps), max(gaps)) in WORDS
    pair = {c: [max(curves("accuracy", c)[m]) for m in ("MoFedSAM", "FedSMOO")] for c in COLUMNS}
    assert "{:.1f} and {:.1f} at Dirichlet 0.1".format(*pair["dirichlet-0.1"]) in WORDS
    assert "{:.1f} and {:.1f} at Pathological 3".format(*pair["pathological-3"]) in WORDS
    leads = [pair[c][1] - pair[c][0] for c in ("dirichlet-0.6", "pathological-6")]
    assert "leads by {:.1f} (Dirichlet 0.6) and {:.1f} (Pathological 6)".format(*leads) in WORDS
    assert f"{sum(len(curves('accuracy', c)) for c in COLUMNS)} runs of 800 rounds" in WORDS
    best = [max(run) for run in curves("ablation").values()]
    gains = "brings {:.1f} points, SAM with it none ({:.1f}), the correction of the perturbation {:.1f}."
    assert gains.format(*(b - a for a, b in pairwise(best))) in WORDS

    def rounds_to(accuracy: float) -> list[int]:
        runs = list(curves("ablation").values())[1:]
        return [next(i + 1 for i, a in enumerate(run) if a >= accuracy) for run in runs]

    late = "FedDyn leaves chance (12%) after {} rounds; with a perturbation of r = 0.1 after {}; with the correction, "
    assert late.format(*rounds_to(12)[:2]) in WORDS
    assert f"after {rounds_to(12)[2]}. FedSAM" in WORDS
    assert "To 68% it takes {}, {} and {} rounds".format(*rounds_to(68)) in WORDS
