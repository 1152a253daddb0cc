"""What measurements on a CPU print and keep."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fedsmoo.runs.origin.provenance import code_facts, cpu_name
from fedsmoo.version import __version__


def keep(found: dict[str, Any], out: Path | None) -> None:
    """Print what was found, with the machine and the code it was found on, and write it into a file if there is one."""
    report = found | {
        "hardware": f"{cpu_name() or platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"fedsmoo": __version__, "torch": torch.__version__},
        **code_facts(),
    }
    print(json.dumps(report, indent=1))
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n")


def measure(rows: Callable[[int], Iterator[dict[str, Any]]], task: str, turns: int, about: str) -> None:
    """Print each row of so many turns as it is measured, and keep all, with what they were measured on."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for row in rows(args.turns):
        results.append(row)
        print(json.dumps(row), flush=True)
    report = {
        "task": task,
        "results": results,
        "hardware": f"{platform.machine()}, 1 thread",
        "versions": {"fedsmoo": __version__, "torch": torch.__version__},
        **code_facts(),
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
