"""The tables of docs/analysis.md, from results/gpu/analysis_*.json, the runs in results/ and the paper's numbers;
``benchmarks/documents/tables.py`` writes them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.pages.gather import method_label
from fedsmoo.paper.experiments import published
from fedsmoo.paper.render import Table, render
from fedsmoo.paper.reproduce import homes
from fedsmoo.sweeps.paired import seeds_in_words
from fedsmoo.sweeps.results import SUPERSEDED, Measured, collect, from_json

ROOT = Path(__file__).parents[2]
RADII = (0.2, 0.4, 0.6, 0.8, 1.0)


def measured(kind: str) -> list[tuple[Path, dict[str, Any], str, dict[str, Any]]]:
    """File, its content, name and measurements of each model that has one of this kind."""
    files = sorted((ROOT / "results" / "gpu").glob("analysis_*.json"))
    content = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in files]
    every = [(path, value, name, found) for path, value in content for name, found in value["models"].items()]
    return [each for each in every if kind in each[3]]


def run_of(found: dict[str, Any], runs: list[Measured]) -> Measured | None:
    """The run whose final model this is: its result holds the same eigenvalue and trace."""
    top, trace = max(found["hessian"]["eigenvalues"]), found["hessian"]["trace"]
    facts = [(r, r.facts.get("hessian") or {}) for r in runs]
    return next((r for r, h in facts if (h.get("top"), h.get("trace")) == (top, trace)), None)


def split_of(path: Path) -> str:
    """The partition in a file's name: ``analysis_06`` was measured at Dirichlet 0.6."""
    digits = re.match(r"analysis_(\d)(\d+)", path.stem)
    return f"dirichlet-{digits[1]}.{digits[2]}" if digits else "?"


def title_of(path: Path, name: str) -> str:
    """A model's row: method and partition, and its seed where the file's name has one, ``analysis_01_seed3``."""
    seed = re.search(r"_seed(\d+)", path.stem)
    return f"{method_label(name)}, {split_of(path)}" + (f", seed {seed[1]}" if seed else "")


def printed(method: str, split: str, key: str) -> str:
    """The paper's number; blank where it has none."""
    table = published()["flatness"]
    column = f"{method} {split}"
    return f"{table[key][table['columns'].index(column)]:.1f}" if column in table["columns"] else ""


def flatness() -> str:
    """Eigenvalue and trace beside the paper's, with the time that each took."""
    counted = list(collect((), homes(ROOT / "results")).values())
    aside = [from_json(path) for path in sorted((ROOT / "results" / SUPERSEDED).glob("*.json"))]
    rows, commits, devices, others, seeds = [], set(), set(), [], set()
    for path, value, name, found in measured("hessian"):
        h, grid, run = found["hessian"], found.get("landscape", {}), run_of(found, [*counted, *aside])
        method, split = method_label(name), split_of(path)
        if run is not None:
            commits.add(str(run.facts["commit"])[:7])
            seeds.add(run.config.seed)
            others += [f"{method} at {split}"] if run in aside else []
            assert str(run.config.partition) == split, f"{path.name}: {name} was trained on {run.config.partition}"
        devices.add(f"{value['device']}, torch {value['versions']['torch']}, products in {value['precision']}")
        rows.append([
            title_of(path, name), f"{h['samples']:,}",
            f"{max(h['eigenvalues']):.1f}", printed(method, split, "hessian_top_eigenvalue"),
            f"{h['trace']:.0f} ± {h['trace_error']:.0f}", printed(method, split, "hessian_trace"),
            f"{h['seconds_eigenvalues']:.1f}", f"{h['seconds_trace']:.1f}",
            f"{grid['seconds']:.1f}" if grid else "",
        ])  # fmt: skip
    note = f"ResNet-18-GN on CIFAR-10, 10 of 100 clients, 800 rounds, {seeds_in_words(tuple(sorted(seeds)))}, "
    note += f"trained at commit {', '.join(sorted(commits))}. Measured on {'; '.join(sorted(devices))}. "
    note += "Seconds of each measurement, without compilation."
    if others:
        note += (
            f" {', '.join(others)}: the model of a second run of the same settings (results/{SUPERSEDED}); the first, "
        )
        note += "which the tables of accuracy count, left no model to measure."
    header = ["final model", "training samples", "top eigenvalue", "paper's", "trace ± its standard error", "paper's"]
    times = ["eigenvalue, s", "trace, s", "landscape, s"]
    return render([Table("Flatness of final models", [*header, *times], rows, [note])], "markdown").rstrip("\n")


def landscape() -> str:
    """How far the test loss rises around each model."""
    rows, notes = [], []
    for path, value, name, found in measured("landscape"):
        grid = found["landscape"]
        z = np.array(grid["loss"])
        distance = np.hypot(*np.meshgrid(grid["a"], grid["b"], indexing="ij"))
        half = (grid["a"][1] - grid["a"][0]) / 2
        rise = [f"{(z[np.abs(distance - r) <= half] - grid['centre']).mean():+.3f}" for r in RADII]
        rows.append([title_of(path, name), f"{100 * grid['recorded_accuracy']:.2f}", f"{grid['centre']:.3f}", *rise])
        notes.append(
            f"{z.shape[0]} x {z.shape[1]} points, {grid['samples']:,} {grid['part']} images, "
            f"products in {value['grid_precision']}"
        )
    how = "Rise: the mean loss of the grid points at that distance, less the loss at the model; at a distance of 1 "
    how += f"every filter has been changed by a vector of about its own length. {'; '.join(dict.fromkeys(notes))}."
    header = ["final model", "test accuracy, %", "test loss", *(f"rise at {r:g}" for r in RADII)]
    return render([Table("The landscape around them", header, rows, [how])], "markdown").rstrip("\n")
