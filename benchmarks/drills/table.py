"""The table of docs/reliability.md, from the outcomes of the full drills in results/drills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[2] / "results" / "drills"


def drills(folder: Path = KEPT) -> str:
    """Return a row for each drill: how many cases were tried, how many held, when, and of which commit."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    entries = [{**kept, **outcome} for kept in found for outcome in kept["outcomes"]]
    lines = ["| drill | tried | held | cases | date | commit |", "|---|---:|---:|---|---|---|", *map(row, entries)]
    sums = [sum(entry[key] for entry in entries) for key in ("tried", "held")]
    return "\n".join([*lines, f"| all | {sums[0]:,} | {sums[1]:,} | | | |"])


def row(entry: dict[str, Any]) -> str:
    """Return a row of the table."""
    numbers, cases = f"{entry['tried']:,} | {entry['held']:,}", "all" if entry["full"] else "a sample"
    return f"| {entry['drill']} | {numbers} | {cases} | {entry['date'][:10]} | {entry['commit'][:7]} |"
