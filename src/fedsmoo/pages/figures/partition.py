"""Who holds which class, as numbers and as pictures: the paper's figures on dataset splitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.partition import PARTITIONS, from_rule
from fedsmoo.data.targets import CLASSES, classes_to_divide_by, names_to_divide_by

SUFFIXES = (".png", ".pdf", ".svg")


def counts(indices: Sequence[np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """Count the labels of every class at every client ``[clients, classes]``: samples, or characters for text."""
    labels = np.asarray(labels)
    held = (labels[np.asarray(i)].reshape(-1) for i in indices)
    return np.stack([np.bincount(mine[mine >= 0], minlength=classes) for mine in held])  # positions may have none


def labels_shown(data: Dataset) -> tuple[np.ndarray, int]:
    """Return the labels that are counted, and how many classes they have: of sequences all, else as partitions do."""
    if data.target == CLASSES and data.y_train.dim() > 1:
        return data.y_train.cpu().numpy(), data.classes
    return classes_to_divide_by(data)


def summary(indices: Sequence[np.ndarray], labels: np.ndarray, classes: int) -> dict[str, Any]:
    """Return a split in numbers.

    The *effective number of classes* of a client is ``exp(H)`` with H the entropy of its labels: 1 if it holds a single
    class, K if it holds all of K classes alike; the mean over clients is given.

    >>> summary([np.array([0, 1]), np.array([2, 3])], np.array([0, 0, 0, 1]), 2)["classes_per_client"]
    {'min': 1, 'mean': 1.5, 'max': 2}
    """
    table = counts(indices, labels, classes)
    totals, sizes = table.sum(0), np.array([len(i) for i in indices])
    used = np.unique(np.concatenate([np.asarray(i) for i in indices])).size
    return {
        "clients": len(indices),
        "samples": int(sizes.sum()),
        "different_samples": int(used),
        "unused_samples": int(len(labels) - used),
        "samples_per_client": _spread(sizes),
        "classes_per_client": _spread((table > 0).sum(1)),
        "class_totals": totals.tolist(),
        "class_totals_std": float(totals.std()),
        "effective_classes": float(np.exp(_entropy(table)).mean()),
        "effective_classes_overall": float(np.exp(_entropy(totals[None])).mean()),
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"min": int(values.min()), "mean": float(values.mean()), "max": int(values.max())}


def _entropy(table: np.ndarray) -> np.ndarray:
    share = table / np.maximum(table.sum(1, keepdims=True), 1)
    return -(share * np.log(np.where(share > 0, share, 1))).sum(1)


def describe(indices: Sequence[np.ndarray], data: Dataset) -> list[str]:
    """Return the summary as lines for a terminal."""
    labels, classes = labels_shown(data)
    s = summary(indices, labels, classes)
    size, held, totals = s["samples_per_client"], s["classes_per_client"], s["class_totals"]
    shown = ", ".join(f"{t:,}" for t in totals[:10]) + (f", ... ({classes} classes)" if len(totals) > 10 else "")
    return [
        f"{s['clients']:,} clients hold {s['samples']:,} samples of {data.name}",
        f"  different samples   {s['different_samples']:,} ({s['unused_samples']:,} of the training part unused)",
        f"  samples per client  {size['min']:,} to {size['max']:,}, mean {size['mean']:,.1f}",
        f"  classes per client  {held['min']} to {held['max']}, mean {held['mean']:.2f}",
        f"  effective classes   {s['effective_classes']:.2f} per client, {s['effective_classes_overall']:.2f} overall",
        f"  class totals        {shown}",
        f"  their std           {s['class_totals_std']:,.1f}",
    ]


def draw(
    indices: Sequence[np.ndarray],
    data: Dataset,
    content: Mapping[str, Any],
    folder: Path,
    stem: str,
    suffix: str = "png",
) -> list[Path]:
    """Draw both pictures of a split, with the class totals of a second one drawn without (or with) replacement.

    More clients than samples have no twin without replacement: there the split stands alone.

    Args:
        indices: the split.
        data: what it divides.
        content: of the split file: its ``rule``, ``seed`` and ``clients``.
        folder, stem, suffix: where the pictures go: ``folder/stem-clients.png``, ``folder/stem-totals.png``.
    """
    labels, classes = labels_shown(data)
    rule, names = dict(content.get("rule", {})), names_to_divide_by(data)
    names = names if names and max(map(len, names)) > 1 else None
    splits = {"this split": indices}
    title = f"{data.name}, {len(indices)} clients"
    if rule.get("name") in PARTITIONS and labels.ndim == 1:
        title = f"{data.name}, {from_rule(rule).name}, {len(indices)} clients"
    if "replacement" in rule and rule.get("name") in PARTITIONS and labels.ndim == 1:
        with_replacement = bool(rule.get("replacement"))
        other = from_rule({**rule, "replacement": not with_replacement})
        words = {True: "with replacement", False: "without replacement"}
        title += f", {words[with_replacement]}"
        splits = {words[with_replacement]: indices}
        if not with_replacement or len(indices) <= len(labels):  # else some would be empty without replacement
            splits[words[not with_replacement]] = other.split(labels, classes, len(indices), content["seed"])
        splits = dict(sorted(splits.items()))
    ending = suffix.lstrip(".")
    return [
        heat_map(folder / f"{stem}-clients.{ending}", indices, labels, classes, names, title),
        class_totals(folder / f"{stem}-totals.{ending}", splits, labels, classes, names, title.split(", with")[0]),
    ]


def heat_map(
    path: str | Path,
    indices: Sequence[np.ndarray],
    labels: np.ndarray,
    classes: int,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Draw client by class: one column per client, one row per class, darker where a client holds more.

    Clients are ordered by the class they hold most of, so that the picture shows structure rather than numbering.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    table = counts(indices, labels, classes)
    order = np.lexsort((-table.max(1), table.argmax(1)))
    figure, axes = new_figure(width=float(np.clip(2.5 + 0.06 * len(indices), 5.5, 11)), height=_tall(classes))
    shades = colormaps["magma_r"].with_extremes(bad="white")  # nothing at all is white, a little is not
    held = np.ma.masked_equal(table[order].T, 0)
    image = axes.imshow(held, aspect="auto", cmap=shades, interpolation="nearest", vmin=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"{len(indices)} clients, ordered by their main class")
    _class_axis(axes, classes, class_names)
    axes.set_title(title or "Samples of each class at each client")
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("samples")
    bar.outline.set_visible(False)
    return save(figure, path)


def class_totals(
    path: str | Path,
    splits: Mapping[str, Sequence[np.ndarray]],
    labels: np.ndarray,
    classes: int,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Draw how many samples of each class the whole federation holds, for one or more splits side by side.

    Args:
        path: a ``.png``, ``.pdf`` or ``.svg`` file.
        splits: such as ``{"with replacement": [...], "without replacement": [...]}``.
        labels: of the training part.
        classes: their number.
        class_names: written along the axis where they fit.
        title: above the picture.
    """
    from matplotlib.ticker import StrMethodFormatter

    figure, axes = new_figure(width=9 if classes > 20 else 6.5, height=3.6)
    width = 0.82 / max(1, len(splits))
    for j, (name, indices) in enumerate(splits.items()):
        totals = counts(indices, labels, classes).sum(0)
        label = f"{name} (std {totals.std():,.0f})"
        colour = _COLOURS[j % len(_COLOURS)]
        if classes > 20 and j:  # many thin pairs of bars are hard to read; a line over bars is not
            axes.stairs(totals, np.arange(classes + 1) - 0.5, baseline=None, label=label, color=colour, linewidth=1.5)
            continue
        thick = 0.9 if classes > 20 else width
        places = np.arange(classes) + (0 if classes > 20 else (j - (len(splits) - 1) / 2) * width)
        axes.bar(places, totals, thick, label=label, color=colour, linewidth=0)
    if classes <= 20:
        axes.set_xticks(range(classes), _names(classes, class_names), rotation=30 if class_names else 0)
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("right" if class_names else "center")
    else:
        axes.set_xlabel("class")
    axes.set_xlim(-0.6, classes - 0.4)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.18)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("samples over all clients")
    axes.set_title(title or "Samples of each class in the federation")
    axes.legend(frameon=False, ncols=2, loc="upper center")
    axes.spines[["top", "right"]].set_visible(False)
    return save(figure, path)


_COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#666666")  # distinct in grey and for colour-blind readers


def new_figure(width: float, height: float):
    """Make a figure outside pyplot's global state, so that drawing is safe in threads and on servers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _tall(classes: int) -> float:
    return float(np.clip(1.6 + 0.22 * classes, 3.2, 7))


def _names(classes: int, class_names: Sequence[str] | None) -> list[str]:
    return [str(k) for k in range(classes)] if class_names is None else [str(n) for n in class_names]


def _class_axis(axes: Any, classes: int, class_names: Sequence[str] | None) -> None:
    if classes <= 30:
        axes.set_yticks(range(classes), _names(classes, class_names))
    if class_names is None or classes > 30:
        axes.set_ylabel("class")
    axes.tick_params(length=0)
    axes.spines[:].set_color("0.8")


def save(figure: Any, path: str | Path) -> Path:
    from matplotlib import rc_context

    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise FedsmooError(f"{path}: pictures end in {', '.join(SUFFIXES)}; choose one of these")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without dates and random names the same split gives the same bytes.
        stamp = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix.lower()]
        with rc_context({"svg.hashsalt": "fedsmoo"}):
            figure.savefig(path, dpi=160, metadata=stamp)
    except OSError as error:
        raise FedsmooError(f"{path}: cannot be written ({error.strerror}); choose another file") from None
    return path
