"""Draw a quantity over rounds, and rounds to a target accuracy, with a panel for each task."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core.errors import FedsmooError
from fedsmoo.pages.figures.base import (
    MARKERS,
    Look,
    at_the_end,
    column,
    finish,
    grouped,
    horizontal,
    legend,
    unit,
    wrapped,
)
from fedsmoo.runs.results.curves import COLOURS, STYLES, hanning

# The paper's methods in its order, which is that of the registry.
PAPER = {method.__name__: k for k, method in enumerate(itertools.islice(ALGORITHMS.values(), 8))}
STEP = 0.5  # points of accuracy between two targets
Lines = dict[str, list[dict[str, Any]]]


def by_task(runs: Sequence[dict[str, Any]], key: str) -> dict[str, Lines]:
    """Return the runs that have measured a quantity, by task and by the line they belong to."""
    out: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if np.isfinite(column(run, key)).any():
            out.setdefault(run["task"], []).append(run)
    return {task: grouped(found) for task, found in out.items()}


# What figures draw over rounds.
QUANTITIES = {"accuracy": "acc", "loss": "loss", "train-loss": "train", "drift": "drift", "rounds": "acc"}


def unmeasured(figure: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the runs that a figure over rounds leaves out: they have measured nothing for it.

    A seed without a round, as of a run that diverged at once, is not in the mean of the others.
    """
    key = QUANTITIES.get(figure)
    return [] if key is None else [run["name"] for run in runs if not np.isfinite(column(run, key)).any()]


def titles(tasks: Sequence[str]) -> list[str]:
    """Return the words in which tasks differ; none for a task alone.

    >>> titles(["cifar10, dirichlet-0.1, mlp", "cifar10, iid, mlp"])
    ['dirichlet-0.1', 'iid']
    """
    parts = [task.split(", ") for task in tasks]
    if len({len(p) for p in parts}) > 1:
        return list(tasks)
    differ = [k for k in range(len(parts[0])) if len({p[k] for p in parts}) > 1]
    return [", ".join(p[k] for k in differ) for p in parts]


def panels(tasks: dict[str, Lines], look: Look) -> tuple[Figure, list[tuple[Any, Lines]]]:
    """Make a figure with axes for each task, all on the same scales; every row of them adds its height."""
    down, abreast = look.rows(len(tasks))
    high = 0.72 if abreast == 1 else 0.6 if down > abreast > 1 and look.width == "page" else 0.88
    figure = look.figure(ratio=high * down / abreast)
    places = figure.subplots(down, abreast, sharex=True, sharey=True, squeeze=False).ravel()
    for k, (axes, title) in enumerate(zip(places, titles(list(tasks)), strict=False)):
        axes.set_title(wrapped(title, look.letters(abreast)))
        axes.tick_params(labelbottom=k + abreast >= len(tasks))  # the lowest of its column, though its row goes on
    for axes in places[len(tasks) :]:
        axes.remove()
    return figure, list(zip(places, tasks.values(), strict=False))


def style(k: int) -> dict[str, Any]:
    """Return colour, dash and marker of the k-th line; each alone distinguishes eight lines, together 64."""
    shifted = k + k // len(COLOURS)  # the second eight have the colours again, with other dashes and markers
    marker = MARKERS[shifted % len(MARKERS)]
    return {
        "color": COLOURS[k % len(COLOURS)],
        "linestyle": STYLES[shifted % len(STYLES)],
        "marker": marker,
        "markersize": 6 if marker == "*" else 4,
        "markeredgecolor": "white",  # so that a marker stands out from lines that cross it
        "markeredgewidth": 0.4,
    }


def looks(names: Sequence[str]) -> dict[str, int]:
    """Return which style each line has: a method of the paper its own in every figure, others what is left.

    >>> looks(["FedSMOO", "mine", "FedAvg"])
    {'FedSMOO': 7, 'mine': 1, 'FedAvg': 0}
    """
    own = {name: PAPER[name] for name in names if name in PAPER}
    free = (k for k in itertools.count() if k not in own.values())
    return {name: own[name] if name in own else next(free) for name in dict.fromkeys(names)}


def every_so_often(k: int, points: int) -> tuple[int, int]:
    """Return where the k-th line has its markers: seven or so, offset from those of its neighbours."""
    apart = max(1, points // 7)
    return k * apart // 8, apart


def close(figure: Figure, drawn: Sequence[tuple[Any, Lines]], across: str, up: str) -> None:
    """Label the outer axes, and add a legend."""
    for axes, _ in drawn:
        place = axes.get_subplotspec()
        lowest = axes.xaxis.get_tick_params()["labelbottom"]
        axes.set(xlabel=across if lowest else "", ylabel=up if place.is_first_col() else "")
        finish(axes)
    legend(figure, [axes for axes, _ in drawn])


def every(drawn: Sequence[tuple[Any, Lines]]) -> list[dict[str, Any]]:
    """Return the runs of all lines of all panels."""
    return [run for _, lines in drawn for runs in lines.values() for run in runs]


def numbered(drawn: Sequence[tuple[Any, Lines]]) -> Iterator[tuple[Any, int, str, list[dict[str, Any]]]]:
    """Yield axes, number, name and runs of each line; a name has the same number in all panels."""
    number = looks([name for _, lines in drawn for name in lines])
    for axes, lines in drawn:
        for name in sorted(lines, key=number.__getitem__):
            yield axes, number[name], name, lines[name]


def curves(data: dict[str, Any], look: Look, key: str, label: str, scale: float = 1.0, log: bool = False) -> Figure:
    """Draw one quantity over rounds: the mean over seeds, their range shaded; if smoothed, with the raw one behind."""
    tasks = by_task(data["runs"], key)
    if not tasks:
        raise FedsmooError(f"none of the runs has measured {label}")
    figure, drawn = panels(tasks, look)
    one, across = unit(every(drawn), look.axis)
    for axes, k, name, runs in numbered(drawn):
        length = min(len(column(r, key)) for r in runs)
        tested = np.isfinite(np.array([column(r, key)[:length] for r in runs])).all(0)
        if not tested.any():
            continue
        x = np.mean([horizontal(r, look.axis)[:length][tested] for r in runs], axis=0) / one
        raw = np.array([scale * column(r, key)[:length][tested] for r in runs])
        # The window is in rounds; where only every tenth was evaluated, a tenth as many points lie in it.
        apart = float(np.diff(horizontal(runs[0], "rounds")[:length][tested]).mean()) if tested.sum() > 1 else 1.0
        y = np.array([hanning(values, round(look.smooth / apart)) for values in raw])
        lost = key == "acc" and any(np.isnan(at_the_end(r)) for r in runs)
        label_of = f"{name} (no number at the end)" if lost else name
        axes.plot(x, y.mean(0), label=label_of, markevery=every_so_often(k, len(x)), zorder=3, **style(k))
        if look.smooth > 2:
            axes.plot(x, raw.mean(0), color=COLOURS[k % len(COLOURS)], alpha=0.22, linewidth=0.4, zorder=1)
        if len(y) > 1:
            axes.fill_between(x, y.min(0), y.max(0), color=COLOURS[k % len(COLOURS)], alpha=0.15, linewidth=0)
        axes.set_yscale("log" if log else "linear")
        if look.axis == "rounds":
            axes.locator_params("x", integer=True, min_n_ticks=1)  # there is no half a round
    close(figure, drawn, across, label)
    return figure


def lead_of(run: dict[str, Any]) -> tuple[str, int]:
    """Return what a run is compared by, with its unit, and what values are multiplied by for it."""
    lead = run.get("lead") or {"title": "test accuracy", "percent": True}
    return (f"{lead['title']} (%)", 100) if lead["percent"] else (lead["title"], 1)


def common_lead(runs: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """Return :func:`lead_of` runs that are compared by the same; refuse others."""
    leads = dict.fromkeys(map(lead_of, runs))
    if len(leads) > 1:
        names = " and ".join(label for label, _ in leads)
        raise FedsmooError(f"the runs are compared by {names}: choose runs with one of them, with --where")
    return next(iter(leads), ("test accuracy (%)", 100))


def scores(data: dict[str, Any], look: Look) -> Figure:
    """Draw what leads over rounds, of runs that are compared by the same."""
    label, scale = common_lead(data["runs"])
    return curves(data, look, "acc", label, scale)


def first_reached(run: dict[str, Any], targets: np.ndarray, axis: str, scale: float = 100) -> np.ndarray:
    """Return what had been spent when each target, a multiple of values, was first reached; nan for those never.

    A negative ``scale``: less is better, and targets are negative, too.
    """
    spent, score = horizontal(run, axis), scale * column(run, "acc")
    best = np.maximum.accumulate(np.where(np.isfinite(score), score, -np.inf))
    near = 1e-9 * max(1.0, float(np.abs(targets).max()))  # an accuracy is a count over a count: never as close as that
    at = np.searchsorted(best, targets - near)
    return np.where(at < len(best), spent[np.minimum(at, len(best) - 1)], np.nan)


def targets_of(runs: Sequence[dict[str, Any]], scale: float) -> np.ndarray:
    """Return the targets of a line: every half per cent from the worst value on, or a hundred steps to the best."""
    lowest = max(np.nanmin(scale * column(r, "acc")) for r in runs)
    if scale == 100:
        return np.arange(np.ceil(lowest / STEP) * STEP, 100 + STEP, STEP)
    return np.linspace(lowest, max(np.nanmax(scale * column(r, "acc")) for r in runs), 101)


def rounds_to_target(data: dict[str, Any], look: Look) -> Figure:
    """Draw the rounds until a value of what leads was first reached: the mean over seeds, their range shaded.

    A line ends where one of its seeds did not get further: a mean over those that did would be of the lucky ones.
    Harder targets are to the right, also where less is better.
    """
    tasks = by_task(data["runs"], "acc")
    label, scale = common_lead([r for lines in tasks.values() for runs in lines.values() for r in runs])
    if not tasks:
        raise FedsmooError(f"none of the runs has measured {label.removesuffix(' (%)')}")
    some = next(iter(next(iter(tasks.values())).values()))[0]
    way = 1 if (some.get("lead") or {}).get("higher", True) else -1
    figure, drawn = panels(tasks, look)
    one, up = unit(every(drawn), look.axis)
    for axes, k, name, runs in numbered(drawn):
        targets = targets_of(runs, way * scale)
        spent = np.array([first_reached(r, targets, look.axis, way * scale) for r in runs]) / one
        there = np.isfinite(spent).all(0)
        if there.any():
            often, x, y = every_so_often(k, int(there.sum())), way * targets[there], spent[:, there]
            axes.plot(x, y.mean(0), label=name, markevery=often, **style(k))
            if len(y) > 1:
                axes.fill_between(x, y.min(0), y.max(0), color=COLOURS[k % len(COLOURS)], alpha=0.15, linewidth=0)
    if way < 0:
        drawn[0][0].invert_xaxis()  # which all panels share
    close(figure, drawn, f"target {label}", up)
    return figure
