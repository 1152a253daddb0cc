"""FLGo-Bench: its split, by a look-alike, imported by the command and run by the repository's sweep file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsmoo
from fedsmoo.cli import app
from fedsmoo.models import MODELS
from fedsmoo.sweeps.bases import load_table

FILE = Path(__file__).parents[2] / "experiments" / "flgo.toml"


def test_its_rows_run_on_its_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"Client{k:03d}" for k in range(100)]
    clients = {name: {"data": list(range(10 * k, 10 * k + 10))} for k, name in enumerate(names)}
    Path("data.json").write_text(json.dumps({"client_names": names, **clients}))
    split = load_table(FILE)["split"]
    made = CliRunner().invoke(app, ["data", "import", "data.json", "--dataset", "digits", "--out", split])
    assert made.exit_code == 0, made.output
    changes = {
        "dataset": "digits", "augment": False, "model": "softmax", "rounds": 1, "seed": [0], "device": "cpu",
        "precision": "fp32",
    }  # fmt: skip
    done = fedsmoo.sweep(FILE, "runs", pack=1, **changes)
    assert len(done.finished) == 3
    found = {run.config.algorithm: run for run in map(fedsmoo.load, done.finished)}
    assert {m: (r.config.weighted, r.config.clip) for m, r in found.items()} == {
        "fedavg": (True, 10.0), "feddyn": (False, 10.0), "scaffold": (False, 10.0),
    }  # fmt: skip
    for run in found.values():
        assert (run.config.clients, run.config.cohort, run.config.holdout) == (100, 20, 0.2)
    assert 1 / found["feddyn"].config.algorithm_options["beta"] == pytest.approx(0.03)


def test_its_cnn_is_ours() -> None:
    """32x32 images in colour, cropped and flipped: 5x5 convolutions of 64, pooling by 2, 1600 - 384 - 192 - 10."""
    table = load_table(FILE)
    assert table["model"] in MODELS
    assert table["augment"] is True
    sizes = [(64, 3, 5, 5), (64,), (64, 64, 5, 5), (64,), (384, 1600), (384,), (192, 384), (192,), (10, 192), (10,)]
    from fedsmoo.models.small import CNN

    assert [tuple(p.shape) for p in CNN(3, 32, 10).parameters()] == sizes
