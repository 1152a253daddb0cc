"""Take result files of the plan's runs into results/, each into the folder where its kind lies (results/README.md).

PYTHONPATH=src python -m benchmarks.campaign.adopt FOLDER ...    # then: make tables figures

Files of benchmarks/studies/flatness.py, analysis_*.json, go into results/gpu.
A file of a run that no file of experiments/ names is refused, and so is one that is there with other numbers; then
nothing is taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from benchmarks.campaign.plan import RESULTS, ROOT
from fedsmoo.paper.experiments import experiment
from fedsmoo.sweeps.bases import read_sweep
from fedsmoo.sweeps.results import Measured, from_json

SEEDS = (0, 1, 2)  # of table 1


@cache
def homes() -> dict[str, str]:
    """The folder below results/ of every run that experiments/ names on data by its name, by identity."""
    before, experiments = Path.cwd(), ROOT / "experiments"
    variants = [*(experiments / "campaign").glob("v?.toml"), *(experiments / "released").glob("*.toml")]
    variants += (experiments / "campaign").glob("14[efg]_*.toml")
    files = {
        experiments / "campaign" / "19_models.toml": "flatness",
        experiments / "campaign" / "0_precision_tf32.toml": "precision",
        **dict.fromkeys(sorted(variants), "variants"),
    }
    os.chdir(ROOT)  # methods of files are named from there
    try:
        found = {cell.identity: home for path, home in files.items() for cell in read_sweep(path).cells}
    finally:
        os.chdir(before)
    for table in ("sensitivity", "ablation", "accuracy"):  # the last has what several of them name
        home = "" if table == "accuracy" else table
        found |= {cell.identity: home for cell in experiment(table, seeds=SEEDS).cells}
    return found


def home(run: Measured) -> str | None:
    """The folder below results/ where a run belongs; none if it is no run of the plan."""
    if run.config.split:
        return "flgo"
    return "search" if run.config.holdout else homes().get(run.identity)


def adopt(folders: list[Path], results: Path = RESULTS) -> list[Path]:
    """Copy the files that are not there yet; returns where they went."""
    new: dict[Path, Path] = {}
    for path in (p for folder in folders for p in sorted(folder.rglob("*-seed*.json"))):
        run = from_json(path)
        where = home(run)
        if where is None or path.stem != run.name:
            sys.exit(f"{path}: no file of experiments/ names this run ({run.name}); nothing was taken")
        to = results / where / path.name
        if to.exists() and not from_json(to).agrees(run):
            sys.exit(f"{path}: {to} has other numbers; nothing was taken")
        if not to.exists():
            new[to] = path
    for path in (p for folder in folders for p in sorted(folder.rglob("analysis_*.json"))):
        to = results / "gpu" / path.name
        if to.exists() and to.read_bytes() != path.read_bytes():
            sys.exit(f"{path}: {to} has other numbers; nothing was taken")
        if not to.exists():
            new[to] = path
    for to, path in new.items():
        to.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, to)
    return list(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="where result files lie, at any depth")
    for path in adopt(parser.parse_args().folders):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
