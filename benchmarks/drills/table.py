"""The table of docs/reliability.md, from the outcomes of the full drills in results/drills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[2] / "results" / "drills"


def drills(folder: Path = KEPT) -> str:
    """Return a row for each drill: how many cases were tried, how many held, when, and of which commit."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    lines = ["| drill | tried | held | date | commit |", "|---|---:|---:|---|---|"]
    lines += [row(outcome, kept) for kept in found for outcome in kept["outcomes"]]
    sums = [sum(o[key] for kept in found for o in kept["outcomes"]) for key in ("tried", "held")]
    lines.append(f"| all | {sums[0]:,} | {sums[1]:,} | | |")
    return "\n".join(lines)


def row(outcome: dict[str, Any], kept: dict[str, Any]) -> str:
    """Return a row of the table."""
    numbers = f"{outcome['tried']:,} | {outcome['held']:,}"
    return f"| {outcome['drill']} | {numbers} | {kept['date'][:10]} | {kept['commit'][:7]} |"
