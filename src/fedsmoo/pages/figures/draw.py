"""Draw figures for papers: sized for a column, fonts that match the text, lines that survive black and white."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.pages.figures import FIGURES
from fedsmoo.pages.figures.base import AXES, STYLE, WIDTHS, Look, at_the_end, column, finish, legend
from fedsmoo.pages.figures.ranks import ranks
from fedsmoo.pages.figures.rounds import curves, lead_of, looks, rounds_to_target, scores, style, titles
from fedsmoo.pages.figures.surfaces import contours, landscape
from fedsmoo.pages.groups import add_groups
from fedsmoo.runs.results.curves import COLOURS

SUFFIXES = (".pdf", ".svg", ".png")


def the_partition(data: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Return samples per client and class of the runs; ``FedsmooError`` if they have several divisions."""
    which = sorted({r["partition"] for r in data["runs"] if r.get("partition") is not None})
    if not which:
        raise FedsmooError("nothing says who holds what: 'fedsmoo analyse fairness RUN' writes it beside a run")
    if len(which) > 1:
        one = [next(r["name"] for r in data["runs"] if r.get("partition") == k) for k in which[:2]]
        raise FedsmooError(
            f"the runs divide their data in {len(which)} ways (such as {one[0]} and {one[1]}): choose runs of one way, "
            "with --where seed=0 for example"
        )
    found = data["partitions"][which[0]]
    table = np.array(found["counts"], float)
    return table, found["names"] or [str(k) for k in range(table.shape[1])]


def heat_map(data: dict[str, Any], look: Look) -> Figure:
    """Draw the samples of each class at each client."""
    table, names = the_partition(data)
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
    """Draw the samples of each class over all clients."""
    table, names = the_partition(data)
    totals = table.sum(0)
    figure = look.figure(ratio=0.55)
    axes = figure.add_subplot()
    axes.bar(np.arange(len(totals)), totals, color=COLOURS[0], edgecolor="black", linewidth=0.4)
    axes.axhline(totals.mean(), color="black", linestyle="--", linewidth=0.8, label=f"mean; std {totals.std():.1f}")
    axes.set(xlabel="class", ylabel="samples over all clients")
    if len(names) <= 20:
        axes.set_xticks(range(len(names)), names)
    finish(axes)
    legend(figure, [axes])
    return figure


def sensitivity(data: dict[str, Any], look: Look) -> Figure:
    """Draw the last accuracy over one setting: mean and deviation over seeds, a line for each group of the others."""
    done = [r for r in data["runs"] if r.get("state", "finished") == "finished"]  # a last accuracy is of the last round
    if not done:
        raise FedsmooError("none of the runs has finished, so there is no last accuracy")
    over = look.over or varying(done)
    figure = look.figure()
    axes = figure.add_subplot()
    runs = add_groups([r for r in done if over in r["config"] and np.isfinite(column(r, "acc")).any()], over)
    if not runs:
        raise FedsmooError(f"no run says its {over}: choose another setting with --over")
    lines = ends_by_value(runs, over)
    words = sorted({v for values in lines.values() for v in values}, key=lambda v: (not is_number(v), sort_key(v)))
    number = looks(list(lines))
    for name, values in lines.items():
        at = [k for k, word in enumerate(words) if word in values]
        seeds = [values[words[k]] for k in at]
        means = [np.mean(v) for v in seeds]
        spread = [float(np.std(v, ddof=1)) if len(v) > 1 else np.nan for v in seeds]  # one seed has no deviation
        lost = np.isnan(np.concatenate([*values.values()])).any()  # a mean without them would be too good
        label = f"{name} (some have no number at the end)" if lost else name
        axes.errorbar(at, means, spread, label=label, capsize=2, **style(number[name]))
    axes.set_xticks(range(len(words)), words)
    axes.set(xlabel=over.removeprefix("algorithm."), ylabel=" or ".join(dict.fromkeys(lead_of(r)[0] for r in runs)))
    finish(axes)
    legend(figure, [axes])
    return figure


def ends_by_value(runs: Sequence[dict[str, Any]], over: str) -> dict[str, dict[str, list[float]]]:
    """Return how well runs ended, a value for each seed: by the line that they belong to, and the setting ``over``."""
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    named = dict(zip(tasks, titles(tasks), strict=True))
    lines: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        name = ": ".join(filter(None, (named[run["task"]], run["group"])))
        value = lead_of(run)[1] * at_the_end(run)
        lines.setdefault(name, {}).setdefault(run["config"][over], []).append(value)
    return lines


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def sort_key(word: str) -> Any:
    return float(word) if is_number(word) else word


def varying(runs: Sequence[dict[str, Any]]) -> str:
    """Return the one setting in which runs differ, besides method and seed; ``FedsmooError`` if there are several."""
    keys = sorted({k for r in runs for k in r["config"]} - {"seed", "algorithm"})
    differ = [k for k in keys if len({r["config"].get(k) for r in runs if k in r["config"]}) > 1]
    if len(differ) != 1:
        found = ", ".join(differ) or "none"
        raise FedsmooError(f"a sensitivity figure needs one setting that varies; these do: {found}. Choose with --over")
    return differ[0]


def spectrum(data: dict[str, Any], look: Look) -> Figure:
    """Draw spectral densities of the Hessian."""
    runs = [r for r in data["runs"] if r["analysis"].get("hessian", {}).get("density")]
    if not runs:
        raise FedsmooError("none of the runs has a spectrum: 'fedsmoo analyse hessian RUN --density 30' measures it")
    figure = look.figure()
    axes = figure.add_subplot()
    for k, run in enumerate(runs):
        found = run["analysis"]["hessian"]
        y = np.array(found["density"], float)
        label = f"{run['group']} (top {found['eigenvalues'][0]:.4g})"
        axes.plot(found["grid"], np.maximum(y, 1e-9), label=label, **{**style(k), "marker": ""})
    axes.set(xlabel="eigenvalue", ylabel="density", yscale="log", ylim=(1e-7, None))
    finish(axes)
    legend(figure, [axes])
    return figure


DRAWN: dict[str, Callable[[dict[str, Any], Look], Figure]] = {
    "accuracy": scores,
    "loss": lambda d, k: curves(d, k, "loss", "test loss"),
    "train-loss": lambda d, k: curves(d, k, "train", "training loss"),
    "drift": lambda d, k: curves(d, k, "drift", r"mean $\|w_i - w\|^2$", log=True),
    "rounds": rounds_to_target,
    "ranks": ranks,
    "landscape": landscape,
    "contours": contours,
    "heatmap": heat_map,
    "totals": class_totals,
    "sensitivity": sensitivity,
    "spectrum": spectrum,
}


def write_figure(name: str, data: dict[str, Any], out: Path, look: Look) -> Path:
    """Draw a figure by name into a PDF, SVG or PNG file."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    if look.width not in WIDTHS:
        raise unknown("width", look.width, WIDTHS)
    if look.axis not in AXES:
        raise unknown("axis", look.axis, AXES)
    if look.smooth < 1:
        raise FedsmooError(f"--smooth {look.smooth}: a window has at least 1 round, which smooths nothing")
    if out.suffix.lower() not in SUFFIXES:
        raise FedsmooError(f"{out}: figures end in {', '.join(SUFFIXES)}; choose one of these")
    with mpl.rc_context(STYLE):
        figure = DRAWN[name](data, look)
        content = rendered(figure, out.suffix.lower())
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    except OSError as e:
        raise FedsmooError(f"cannot write {out}: {e.strerror}") from e
    return out


def rendered(figure: Figure, suffix: str) -> bytes:
    """Return the bytes of a figure's file; without dates, so that the same runs give the same bytes."""
    stamp: Any = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}[suffix]
    out = io.BytesIO()
    figure.savefig(out, format=suffix[1:], dpi=300, metadata=stamp)
    return out.getvalue() if suffix != ".svg" else shortened(out.getvalue().decode()).encode()


def shortened(svg: str) -> str:
    """Round the paths of an SVG to two decimals: a hundredth of a point is invisible.

    >>> shortened('<path d="M 1.234567 2.5 L 3 4.000001" transform="scale(0.015625)"/>')
    '<path d="M 1.23 2.5 L 3 4.00" transform="scale(0.015625)"/>'
    """
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
