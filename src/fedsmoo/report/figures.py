"""Figures for papers: sized for a column, fonts that match the text, lines that survive black and white."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.report.curves import COLOURS, STYLES, hanning

SUFFIXES = (".pdf", ".svg", ".png")
WIDTHS = {"column": 3.25, "page": 6.75}  # inches, as in two-column conference styles
# Fonts of 8 points beside a text of 10; TrueType in PDF, because submission systems refuse Type 3.
STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedsmoo",
}
MARKERS = "os^Dvx+*"


@dataclass(frozen=True)
class Look:
    """What a figure may be asked for."""

    width: str = "column"
    smooth: int = 1
    over: str | None = None  # sensitivity: the setting on the horizontal axis
    focus: str | None = None  # landscape: the run whose grid is laid over the others
    axis: str = "rounds"

    def figure(self, ratio: float = 0.72, **options: Any) -> Figure:
        made = Figure(figsize=(WIDTHS[self.width], ratio * WIDTHS[self.width]), layout="constrained", **options)
        FigureCanvasAgg(made)
        return made


def column(run: dict[str, Any], key: str) -> np.ndarray:
    """A quantity per round; nan where it was not measured."""
    rounds = run["rounds"]
    length = rounds if isinstance(rounds, int) else len(rounds)
    values = run[key] if isinstance(run[key], list) else [run[key]] * length
    return np.array([np.nan if v is None else v for v in values], float)


def horizontal(run: dict[str, Any], axis: str) -> np.ndarray:
    """Rounds, or megabytes or seconds spent by then."""
    if axis == "bytes":
        return np.nancumsum(column(run, "up") + column(run, "down")) / 1e6
    if axis == "seconds":
        return np.nancumsum(column(run, "sec"))
    rounds = run["rounds"]
    return np.arange(1, rounds + 1) if isinstance(rounds, int) else np.array(rounds)


AXES = {"rounds": "communication rounds", "bytes": "megabytes sent", "seconds": "seconds of training"}


def grouped(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs by the line they belong to."""
    out: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        out.setdefault(run["group"], []).append(run)
    return out


def curves(data: dict[str, Any], look: Look, key: str, label: str, scale: float = 1.0, log: bool = False) -> Figure:
    """One quantity over rounds: the mean over seeds, the range of seeds shaded."""
    figure = look.figure()
    axes = figure.add_subplot()
    for k, (name, runs) in enumerate(grouped(data["runs"]).items()):
        length = min(len(column(r, key)) for r in runs)
        tested = np.isfinite(np.array([column(r, key)[:length] for r in runs])).all(0)
        if not tested.any():
            continue
        x = np.mean([horizontal(r, look.axis)[:length][tested] for r in runs], axis=0)
        y = np.array([hanning(scale * column(r, key)[:length][tested], look.smooth) for r in runs])
        colour, every = COLOURS[k % len(COLOURS)], max(1, len(x) // 7)
        axes.plot(
            x, y.mean(0), label=name, color=colour, linestyle=STYLES[k % len(STYLES)],
            marker=MARKERS[k % len(MARKERS)], markersize=3, markevery=(k * every // 8, every),
        )  # fmt: skip
        if len(y) > 1:
            axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)
    if not axes.lines:
        raise FedsmooError(f"none of the runs has measured {label}")
    axes.set(xlabel=AXES[look.axis], ylabel=label)
    axes.set_yscale("log" if log else "linear")
    finish(axes)
    return figure


def finish(axes: Any) -> None:
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) > 0:
        axes.legend(frameon=False, handlelength=2.4)


def with_surface(data: dict[str, Any]) -> list[dict[str, Any]]:
    found = [r for r in data["runs"] if "landscape" in r["analysis"]]
    if not found:
        raise FedsmooError("none of the runs has a landscape: measure it with 'fedsmoo analyse landscape RUN'")
    return found


def landscape(data: dict[str, Any], look: Look) -> Figure:
    """Loss surfaces; one run's as a grid over each of the others, as in the paper's figure."""
    runs = with_surface(data)
    names = [r["name"] for r in runs]
    if look.focus is not None and look.focus not in names:
        raise unknown("run with a landscape", look.focus, names)
    smoo = [r["name"] for r in runs if r["method"] == "FedSMOO"]
    focus = runs[names.index(look.focus or (smoo[0] if smoo else names[-1]))]
    others = [r for r in runs if r is not focus] or [focus]
    figure = look.figure(ratio=0.9 if len(others) == 1 else 1.0 / len(others) + 0.05)
    for k, run in enumerate(others):
        axes: Any = figure.add_subplot(1, len(others), k + 1, projection="3d")
        surface(axes, run["analysis"]["landscape"], grid=False)
        if run is not focus:
            surface(axes, focus["analysis"]["landscape"], grid=True)
            axes.set_title(f"loss of {run['group']}, and of {focus['group']} as a grid")
        else:
            axes.set_title(f"loss of {run['group']}")
        axes.view_init(elev=22, azim=-60)
        axes.tick_params(pad=-3)
    return figure


def surface(axes: Any, found: dict[str, Any], grid: bool) -> None:
    a, b = np.meshgrid(np.array(found["a"], float), np.array(found["b"], float), indexing="ij")
    z = np.array([[np.nan if v is None else v for v in row] for row in found["loss"]], float)
    if grid:
        axes.plot_wireframe(a, b, z, rcount=14, ccount=14, color="black", linewidth=0.5)
    else:
        axes.plot_surface(a, b, z, cmap="cividis", linewidth=0, antialiased=True, alpha=0.85, rcount=51, ccount=51)


def contours(data: dict[str, Any], look: Look) -> Figure:
    """The same landscapes from above, on one scale."""
    runs = with_surface(data)
    figure = look.figure(ratio=1.0 / len(runs) + 0.08)
    all_z = [np.array(r["analysis"]["landscape"]["loss"], float) for r in runs]
    levels = np.linspace(min(np.nanmin(z) for z in all_z), min(np.nanmax(z) for z in all_z), 15)
    for k, (run, z) in enumerate(zip(runs, all_z, strict=True)):
        axes = figure.add_subplot(1, len(runs), k + 1)
        found = run["analysis"]["landscape"]
        drawn = axes.contour(found["a"], found["b"], z.T, levels=levels, cmap="cividis", linewidths=0.8)
        axes.clabel(drawn, levels[::4], fontsize=5)
        axes.plot(0, 0, "kx", markersize=4)
        axes.set(title=run["group"], xlabel="a", ylabel="b" if k == 0 else "", aspect="equal")
    return figure


def first_partition(data: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    if not data["partitions"]:
        raise FedsmooError("nothing says who holds what: 'fedsmoo analyse fairness RUN' writes it beside a run")
    found = data["partitions"][0]
    table = np.array(found["counts"], float)
    return table, found["names"] or [str(k) for k in range(table.shape[1])]


def heat_map(data: dict[str, Any], look: Look) -> Figure:
    """Samples of each class at each client."""
    table, names = first_partition(data)
    figure = look.figure(ratio=0.6)
    axes = figure.add_subplot()
    image = axes.imshow(np.ma.masked_equal(table.T, 0), aspect="auto", cmap="magma_r", interpolation="nearest", vmin=0)
    axes.set(xlabel="client", ylabel="class")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(names) <= 20:
        axes.set_yticks(range(len(names)), names)
    figure.colorbar(image, ax=axes, pad=0.02, label="samples")
    return figure


def class_totals(data: dict[str, Any], look: Look) -> Figure:
    """Samples of each class over all clients."""
    table, names = first_partition(data)
    totals = table.sum(0)
    figure = look.figure(ratio=0.55)
    axes = figure.add_subplot()
    axes.bar(np.arange(len(totals)), totals, color=COLOURS[0], edgecolor="black", linewidth=0.4)
    axes.axhline(totals.mean(), color="black", linestyle="--", linewidth=0.8, label=f"mean; std {totals.std():.1f}")
    axes.set(xlabel="class", ylabel="samples over all clients")
    if len(names) <= 20:
        axes.set_xticks(range(len(names)), names)
    finish(axes)
    return figure


def sensitivity(data: dict[str, Any], look: Look) -> Figure:
    """Last accuracy over one setting: mean and standard deviation over seeds, a line per method."""
    over = look.over or varying(data["runs"])
    figure = look.figure()
    axes = figure.add_subplot()
    methods: dict[str, dict[str, list[float]]] = {}
    for run in data["runs"]:
        tested = column(run, "acc")
        tested = tested[np.isfinite(tested)]
        if over in run["config"] and len(tested):
            methods.setdefault(run["method"], {}).setdefault(run["config"][over], []).append(100 * tested[-1])
    if not methods:
        raise FedsmooError(f"no run says its {over}: choose another setting with --over")
    words = sorted({v for values in methods.values() for v in values}, key=lambda v: (not is_number(v), sort_key(v)))
    for k, (method, values) in enumerate(methods.items()):
        at = [words.index(v) for v in words if v in values]
        means = [np.mean(values[words[i]]) for i in at]
        spread = [float(np.std(values[words[i]], ddof=min(1, len(values[words[i]]) - 1))) for i in at]
        axes.errorbar(
            at, means, spread, label=method, color=COLOURS[k % len(COLOURS)], linestyle=STYLES[k % len(STYLES)],
            marker=MARKERS[k % len(MARKERS)], markersize=4, capsize=2,
        )  # fmt: skip
    axes.set_xticks(range(len(words)), words)
    axes.set(xlabel=over.removeprefix("algorithm."), ylabel="test accuracy (%)")
    finish(axes)
    return figure


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def sort_key(word: str) -> Any:
    return float(word) if is_number(word) else word


def varying(runs: Sequence[dict[str, Any]]) -> str:
    """The one setting in which runs differ, besides method and seed."""
    keys = sorted({k for r in runs for k in r["config"]} - {"seed", "algorithm"})
    differ = [k for k in keys if len({r["config"].get(k) for r in runs if k in r["config"]}) > 1]
    if len(differ) != 1:
        found = ", ".join(differ) or "none"
        raise FedsmooError(f"a sensitivity figure needs one setting that varies; these do: {found}. Choose with --over")
    return differ[0]


def spectrum(data: dict[str, Any], look: Look) -> Figure:
    """Spectral densities of the Hessian."""
    runs = [r for r in data["runs"] if r["analysis"].get("hessian", {}).get("density")]
    if not runs:
        raise FedsmooError("none of the runs has a spectrum: 'fedsmoo analyse hessian RUN --density 30' measures it")
    figure = look.figure()
    axes = figure.add_subplot()
    for k, run in enumerate(runs):
        found = run["analysis"]["hessian"]
        y = np.array(found["density"], float)
        label, colour = f"{run['group']} (top {found['eigenvalues'][0]:.4g})", COLOURS[k % len(COLOURS)]
        axes.plot(found["grid"], np.maximum(y, 1e-9), label=label, color=colour, linestyle=STYLES[k % len(STYLES)])
    axes.set(xlabel="eigenvalue", ylabel="density", yscale="log", ylim=(1e-7, None))
    finish(axes)
    return figure


FIGURES: dict[str, tuple[str, Callable[[dict[str, Any], Look], Figure]]] = {
    "accuracy": ("test accuracy over rounds", lambda d, k: curves(d, k, "acc", "test accuracy (%)", 100)),
    "loss": ("test loss over rounds", lambda d, k: curves(d, k, "loss", "test loss")),
    "train-loss": ("training loss over rounds", lambda d, k: curves(d, k, "train", "training loss")),
    "drift": ("client drift over rounds", lambda d, k: curves(d, k, "drift", r"mean $\|w_i - w\|^2$", log=True)),
    "landscape": ("loss surfaces, one laid over the others", landscape),
    "contours": ("loss surfaces from above", contours),
    "heatmap": ("samples of each class at each client", heat_map),
    "totals": ("samples of each class over all clients", class_totals),
    "sensitivity": ("last accuracy over one setting", sensitivity),
    "spectrum": ("spectral density of the Hessian", spectrum),
}


def write_figure(name: str, data: dict[str, Any], out: Path, look: Look) -> Path:
    """Draw a figure by name into a PDF, SVG or PNG file."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    if look.width not in WIDTHS:
        raise unknown("width", look.width, WIDTHS)
    if look.axis not in AXES:
        raise unknown("axis", look.axis, AXES)
    if out.suffix.lower() not in SUFFIXES:
        raise FedsmooError(f"{out}: figures end in {', '.join(SUFFIXES)}; choose one of these")
    with mpl.rc_context(STYLE):
        figure = FIGURES[name][1](data, look)
        # Without dates the same runs give the same bytes.
        stamp = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}[out.suffix.lower()]
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(out, dpi=300, metadata=stamp)
        except OSError as e:
            raise FedsmooError(f"cannot write {out}: {e.strerror}") from e
    return out
