"""A measurement is one file: commands, probes and pages find it by themselves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import fedsmoo.analysis
from fedsmoo.analysis.measurement import measurements
from fedsmoo.analysis.probes import Schedule, probes
from fedsmoo.cli import app
from fedsmoo.commands.analyse import command
from fedsmoo.pages import measured
from fedsmoo.runs.results.finished import open_finished
from fedsmoo.runs.storage.reader import Files

ONE_FILE = """
from dataclasses import dataclass
from fedsmoo.analysis.measurement import Measurement
from fedsmoo.core import option

@dataclass(frozen=True)
class WeightNorm(Measurement):
    name = "weight_norm"
    help = "The model's norm."
    columns = ("norm",)
    times: float = option(1.0, "a factor", within="(0, inf)")

    def measure(self, run, *others):
        return {"norm": self.times * run.w.norm().item(), "note": "<b>"}

    def rows(self, name, values):
        return [[name, f"{values['norm']:.6f}"]]

    @classmethod
    def probe(cls, now):
        return {"weight_norm": now.server.w.norm().item()}
"""


@pytest.fixture
def weight_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "weight_norm.py").write_text(ONE_FILE)
    monkeypatch.setattr(fedsmoo.analysis, "__path__", [*fedsmoo.analysis.__path__, str(tmp_path)])
    measurements.cache_clear()
    yield measurements()["weight_norm"]
    sys.modules.pop("fedsmoo.analysis.weight_norm", None)
    measurements.cache_clear()


def test_the_measurements_of_the_package() -> None:
    kinds = {"bound", "consistency", "fairness", "hessian", "landscape", "line", "partition", "plane", "sharpness"}
    assert kinds <= set(measurements())
    assert {"consistency", "fairness", "hessian", "sharpness"} <= set(probes())


def test_a_file_is_a_command_a_probe_and_a_part_of_the_page(weight_norm, tmp_path: Path) -> None:
    words = "--algorithm fedavg --model softmax --rounds 1 --clients 4 --cohort 2 --local-steps 1 --device cpu"
    folder, runner = tmp_path / "run", CliRunner()
    assert Schedule.parse("weight_norm:1").due(1, 1) == ["weight_norm"]
    ran = runner.invoke(app, ["run", *words.split(), "--probe", "weight_norm:1", "--out", str(folder)])
    assert ran.exit_code == 0, ran.output
    own = typer.Typer()
    own.command()(command(weight_norm))
    said = runner.invoke(own, [str(folder), "--times", "2", "--device", "cpu"])
    true = open_finished(folder, "cpu").w.norm().item()
    assert said.exit_code == 0, said.output
    assert f"{2 * true:.6f}" in said.output
    assert json.loads((folder / "analysis/weight_norm.json").read_text())["norm"] == pytest.approx(2 * true)
    record = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["probes"]["weight_norm"] == pytest.approx(true)
    assert measured.read_all(Files(folder, strict=True))["weight_norm"] == {"norm": pytest.approx(2 * true, rel=1e-5)}
