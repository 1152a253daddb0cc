"""Draw table 1 on one page: each method's rank in each column, coloured by its distance to the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from fedsmoo.core.errors import FedsmooError
from fedsmoo.pages.figures.base import Look
from fedsmoo.paper.cells import Grid
from fedsmoo.paper.standing import standings, table_one
from fedsmoo.sweeps.results import collect

SHADES = colormaps["RdBu"]
DARK = 0.18  # luminance below which white letters have more contrast than black ones


def of_the_table(runs: list[dict[str, Any]]) -> Grid:
    """Return table 1 with what these runs measured of it, over all of their seeds."""
    files = [Path(run["file"]) for run in runs if "file" in run]
    grid = table_one(collect((), sorted(files), whole=True))  # a superseded one counts in no table
    if grid is None:
        raise FedsmooError(
            "none of these runs is of table 1: give its result files, which 'fedsmoo results export' writes"
        )
    return grid


def ranks(data: dict[str, Any], look: Look) -> Figure:
    """Draw a cell for each method (across) and column of the paper (down), red where ours is below the paper's."""
    grid = of_the_table(data["runs"])
    found = standings(grid)
    columns = [c for c in grid.columns if any((m, c) in found for m in grid.methods)]
    gaps = np.full((len(columns), len(grid.methods)), np.nan)
    figure = look.figure(ratio=(0.27 * len(columns) + 0.75) / 6.75)
    axes = figure.add_subplot()
    for (method, column), cell in found.items():
        gaps[columns.index(column), grid.methods.index(method)] = np.nan if cell.gap is None else cell.gap
    far = float(np.nanmax(np.abs(gaps))) if np.isfinite(gaps).any() else 1.0
    scale = Normalize(-far, far)
    image = axes.imshow(gaps, aspect="auto", cmap=SHADES, norm=scale, interpolation="nearest")
    for (method, column), cell in found.items():
        shade = SHADES(scale(cell.gap)) if cell.gap is not None else (1.0, 1.0, 1.0, 1.0)
        weight = "bold" if cell.rank == 1 else "normal"
        place = grid.methods.index(method), columns.index(column)
        ink = "white" if luminance(shade) < DARK else "black"
        axes.text(*place, str(cell), ha="center", va="center", color=ink, fontsize=6.5, fontweight=weight)
    axes.set_xticks(range(len(grid.methods)), grid.methods)
    axes.set_yticks(range(len(columns)), columns)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    for k in range(1, len(columns)):
        new = columns[k].partition(".")[0] != columns[k - 1].partition(".")[0]
        axes.axhline(k - 0.5, color="black" if new else "white", linewidth=0.8)
    for k in range(1, len(grid.methods)):
        axes.axvline(k - 0.5, color="white", linewidth=0.8)
    figure.colorbar(image, ax=axes, pad=0.02, aspect=40, label="best on test less the paper's, points")
    return figure


def luminance(shade: tuple[float, ...]) -> float:
    """Return how bright a colour is, from 0 to 1, as sRGB defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shade[:3]]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
