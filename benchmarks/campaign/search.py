"""The search with one budget (experiments/campaign/13*, 14*): its table, and src/fedsmoo/paper/searched.toml, which
``fedsmoo show`` reads.

PYTHONPATH=src python -m benchmarks.campaign.search [--check]    # --check: fail if the file is out of date
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path

from fedsmoo.pages.gather import method_label
from fedsmoo.paper.render import Table, render
from fedsmoo.paper.searched import Tried, as_toml, tried, winners
from fedsmoo.sweeps.results import from_json

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src" / "fedsmoo" / "paper" / "searched.toml"


@cache
def runs() -> list[Tried]:
    return tried(from_json(path) for path in sorted((ROOT / "results" / "search").glob("*.json")))


def search() -> str:
    """A table for each task: every run, the best of each method first."""
    tables = []
    for task in dict.fromkeys(t.task for t in runs()):
        here = [t for t in runs() if t.task == task]
        best = {m: max(t.validation for t in here if t.algorithm == m) for m in {t.algorithm for t in here}}
        here.sort(key=lambda t: (-best[t.algorithm], -t.validation))
        rows = [
            [method_label(t.algorithm), ", ".join(f"{k} = {v}" for k, v in t.settings.items()), f"{t.validation:.2f}",
             f"{t.test:.2f}"] for t in here
        ]  # fmt: skip
        tables.append(Table(f"Search: {task}", ["method", "settings", "samples held out", "test set"], rows))
    note = "Mean accuracy of the last ten rounds, in per cent; a tenth of each client's samples is held out. One seed."
    return render([*tables[:-1], Table(tables[-1].title, tables[-1].header, tables[-1].rows, [note])], "markdown")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if the file is out of date")
    text = as_toml(winners(runs()))
    if parser.parse_args().check and FILE.read_text() != text:
        sys.exit(f"{FILE.name} is out of date: run python -m benchmarks.campaign.search")
    FILE.write_text(text)


if __name__ == "__main__":
    main()
