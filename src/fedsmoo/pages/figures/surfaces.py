"""Draw loss surfaces around models: one laid over the others, side by side, or from above."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.pages.figures.base import Look, wrapped

Grid3 = tuple[np.ndarray, np.ndarray, np.ndarray]  # both coordinates and the height


def with_surface(data: dict[str, Any]) -> list[dict[str, Any]]:
    found = [r for r in data["runs"] if "landscape" in r["analysis"]]
    if not found:
        raise FedsmooError("none of the runs has a landscape: measure it with 'fedsmoo analyse landscape RUN'")
    return found


def landscape(data: dict[str, Any], look: Look) -> Figure:
    """Draw loss surfaces on the same axes; one run's as a grid over each of the others, as in the paper's figure."""
    runs = with_surface(data)
    limits = span(runs)
    if look.apart:
        return side_by_side(runs, look, limits)
    names = [r["name"] for r in runs]
    if look.focus is not None and look.focus not in names:
        raise unknown("run with a landscape", look.focus, names)
    smoo = [r["name"] for r in runs if r["method"] == "FedSMOO"]
    focus = runs[names.index(look.focus or (smoo[0] if smoo else names[-1]))]
    others = [r for r in runs if r is not focus] or [focus]
    down, abreast = look.rows(len(others))
    figure = look.figure(ratio=0.9 if len(others) == 1 else (1.0 / abreast + 0.05) * down)
    for k, run in enumerate(others):
        axes = solid(figure, (down, abreast), k)
        axes.set_zlim(*limits)
        surface(axes, run["analysis"]["landscape"], limits)
        if run is not focus:
            grid(axes, focus["analysis"]["landscape"])
            title = f"{words(run)}, and of {focus['group']} as a grid"
            axes.set_title(title if abreast == 1 else wrapped(title, look.letters(abreast)))
        else:
            axes.set_title(words(run))
    return figure


def side_by_side(runs: list[dict[str, Any]], look: Look, limits: tuple[float, float]) -> Figure:
    """Draw surfaces side by side, with level lines on the floor at the same losses."""
    down, abreast = look.rows(len(runs))
    figure = look.figure(ratio=0.88 * down / abreast)
    floor = limits[0] - 0.4 * (limits[1] - limits[0])
    for k, run in enumerate(runs):
        axes, found = solid(figure, (down, abreast), k), run["analysis"]["landscape"]
        axes.set_zlim(floor, limits[1])
        a, b, z = arrays(found)
        axes.contour(a, b, z, levels=np.linspace(*limits, 11), zdir="z", offset=floor, colors="black", linewidths=0.4)
        surface(axes, found, limits, edges=True)
        apart = ": " if abreast < 3 else ":\n"
        axes.set_title(f"{words(run)}{apart}{z[tuple(n // 2 for n in z.shape)]:.2f} at the centre", y=1.0)
    return figure


def words(run: dict[str, Any]) -> str:
    """Return what a surface shows: ``test loss of FedSAM``."""
    return f"{run['analysis']['landscape'].get('part', '')} loss of {run['group']}".strip()


def span(runs: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the lowest and the highest loss of all."""
    every = np.concatenate([arrays(r["analysis"]["landscape"])[2].ravel() for r in runs])
    return float(np.nanmin(every)), float(np.nanmax(every))


def arrays(found: dict[str, Any]) -> Grid3:
    """Return both coordinates and the loss at each point of the grid."""
    a, b = np.meshgrid(np.array(found["a"], float), np.array(found["b"], float), indexing="ij")
    return a, b, np.array([[np.nan if v is None else v for v in row] for row in found["loss"]], float)


def solid(figure: Figure, rows: tuple[int, int], k: int) -> Any:
    """Add the k-th of so many rows of so many axes in three dimensions."""
    axes: Any = figure.add_subplot(*rows, k + 1, projection="3d")
    axes.set_xlabel("a", labelpad=-8)
    axes.set_ylabel("b", labelpad=-8)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axis.pane.set_facecolor("white")
        axis.pane.set_edgecolor("#cccccc")
    axes.tick_params(pad=-3)
    axes.view_init(elev=22, azim=-60)
    axes.set_box_aspect(None, zoom=1.08)
    return axes


def surface(axes: Any, found: dict[str, Any], limits: tuple[float, float], edges: bool = False) -> None:
    """Draw a coloured surface; with edges its faces are few and outlined, which shows its shape without colour too."""
    points = thinned(arrays(found)) if edges else arrays(found)
    look: dict[str, Any] = {"linewidth": 0, "alpha": 0.85, "rcount": 51, "ccount": 51}
    if edges:
        look = {"linewidth": 0.2, "edgecolor": "black", "rstride": 1, "cstride": 1}
    axes.plot_surface(*points, cmap="cividis", vmin=limits[0], vmax=limits[1], antialiased=True, **look)


def thinned(points: Grid3, faces: int = 18) -> Grid3:
    """Thin a grid to so many faces each way: both ends and, as their number is even, the centre are kept."""
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, faces + 1)).round().astype(int)) for n in points[2].shape)
    a, b, z = (values[np.ix_(rows, columns)] for values in points)
    return a, b, z


def grid(axes: Any, found: dict[str, Any]) -> None:
    axes.plot_wireframe(*arrays(found), rcount=14, ccount=14, color="black", linewidth=0.5)


def contours(data: dict[str, Any], look: Look) -> Figure:
    """Draw the same landscapes from above, on one scale."""
    runs = with_surface(data)
    down, abreast = look.rows(len(runs))
    figure = look.figure(ratio=(1.0 / abreast + 0.08) * down)
    all_z = [arrays(r["analysis"]["landscape"])[2] for r in runs]
    levels = np.linspace(min(np.nanmin(z) for z in all_z), min(np.nanmax(z) for z in all_z), 15)
    for k, (run, z) in enumerate(zip(runs, all_z, strict=True)):
        axes = figure.add_subplot(down, abreast, k + 1)
        found = run["analysis"]["landscape"]
        drawn = axes.contour(found["a"], found["b"], z.T, levels=levels, cmap="cividis", linewidths=0.8)
        axes.clabel(drawn, levels[::4], fontsize=5)
        axes.plot(0, 0, "kx", markersize=4)
        axes.set(
            title=wrapped(run["group"], look.letters(abreast)),
            xlabel="a",
            ylabel="b" if k % abreast == 0 else "",
            aspect="equal",
        )
    return figure
