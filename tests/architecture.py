"""What ARCHITECTURE.md says: its tables and its walks, as data."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the part of the page under a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title: str) -> list[list[str]]:
    """Return the rows of the table under a heading, without its head."""
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def room_name(cell: str) -> str:
    """Return the name of a room as it is imported: `core/` is core, `api.py` is api."""
    return cell.strip("`").removesuffix("/").removesuffix(".py")


def arrows() -> dict[str, set[str]]:
    """Return the rooms that each room imports; those that may import all are left out."""
    rows = [(room_name(cell), imported) for cell, _, imported in table("Rooms")]
    return {room: set(re.findall(r"\w+", imported)) for room, imported in rows if imported != "all"}


def top() -> set[str]:
    """Return the rooms that may import all others, and that nothing imports."""
    return {room_name(cell) for cell, _, imported in table("Rooms") if imported == "all"}


def walk(title: str) -> list[tuple[tuple[str, ...], str]]:
    """Return the functions of a walk in their order, each with those that it is indented under, outermost first."""
    found: list[tuple[tuple[str, ...], str]] = []
    above: list[str] = []
    for line in section(title).split("```")[1].strip().splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        above = [*above[:depth], name]
        found.append((tuple(above[:-1]), name))
    return found
