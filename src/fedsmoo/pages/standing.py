"""What a page shows of the paper's table 1: each method's rank in each column, and its distance to the paper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedsmoo.paper.standing import standings, table_one
from fedsmoo.sweeps.results import collect


def may_be_of_it(run: dict[str, Any]) -> bool:
    """Return whether a finished run might be a cell of the table, so that it is worth a closer look."""
    config = run["config"]
    alike = config.get("model") == "resnet18_gn" and config.get("dataset") in ("cifar10", "cifar100")
    return alike and run["state"] == "finished"


@lru_cache(maxsize=8)  # a live page asks again and again
def standing(folders: tuple[tuple[Path, str], ...], files: tuple[Path, ...] = ()) -> dict[str, Any] | None:
    """Return the table from run folders, with their stamps, and result files; ``None`` if none is of it.

    That is its methods, its columns and a list for each cell: column, method, seeds, distance, and its text.
    """
    try:
        grid = table_one(collect([path for path, _ in folders], files, len))
    except Exception:  # whatever a config written by others asks for, the page is shown without it
        return None
    if grid is None:
        return None
    cells = standings(grid)
    columns = used(grid.columns, [column for _, column in cells])
    methods = used(grid.methods, [method for method, _ in cells])
    rows = [
        [columns.index(c), methods.index(m), cell.seeds, None if cell.gap is None else round(cell.gap, 4), str(cell)]
        for (m, c), cell in cells.items()
    ]
    return {"methods": methods, "columns": columns, "cells": rows}


def used(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return those of some names that are there, in their order."""
    return [name for name in names if name in there]
