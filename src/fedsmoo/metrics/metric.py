"""Metrics by name, or functions of a user's own, for what the targets of a data set are."""

from __future__ import annotations

import dataclasses
import functools
import numbers
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.user_code import call, is_in_file, refuse_other_arguments, user_object
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.targets import CLASSES, LABELS, NO_LABEL, NUMBERS
from fedsmoo.metrics import functions as f
from fedsmoo.metrics.quantity import QUANTITIES, TOP, Quantity, quantity

ARGUMENTS = ("outputs", "targets")
Own = Callable[[Tensor, Tensor], Any]  # a user's function of all outputs and targets of a part
DEFAULT = {CLASSES: "accuracy", NUMBERS: "mse", LABELS: "f1"}
EXAMPLES = ("accuracy", "top-5", "f1", "f1-micro", "auc", "perplexity", "mse", "mae", "r2", "loss")  # all by name


@dataclass(frozen=True)
class Metric:
    """A metric: either ``sums`` of batches and the ``value`` of their totals, or a value of all outputs (``whole``).

    The mean loss, which every evaluation has, needs neither.
    """

    quantity: Quantity
    sums: f.Sums | None = None
    value: Callable[[np.ndarray, int], float] = f.mean  # of the totals, and the number of samples
    whole: Callable[[Tensor, Tensor], float] | None = None
    mine: bool = False  # a function of the user's
    ignores: int = NO_LABEL  # the label that does not count, besides -100
    above: float = 0.0  # the output above which one of several labels is said

    @property
    def name(self) -> str:
        return self.quantity.name

    def ignoring(self, label: int) -> Metric:
        """Return the metric of classes, by which another label does not count; users' functions see it as it is."""
        if label == NO_LABEL or self.mine:
            return self
        sums, whole = self.sums, self.whole
        return dataclasses.replace(
            self,
            sums=None if sums is None else lambda out, y: sums(*f.without_label(label, out, y)),
            whole=None if whole is None else lambda out, y: whole(*f.without_label(label, out, y)),
            ignores=label,
        )

    def saying_above(self, bound: float) -> Metric:
        """Return the metric of several labels, each of which is said where its output is above another bound.

        The area under a curve goes by the order of outputs alone, and users' functions see them as they are.
        """
        if self.sums is None or bound == self.above:
            return self
        sums, by = self.sums, bound - self.above
        return dataclasses.replace(self, sums=lambda out, y: sums(out - by, y), above=bound)


# name -> for each kind of target what is computed: sums and their value, or one of all outputs.
COMPUTED: dict[str, dict[str, dict[str, Any]]] = {
    "accuracy": {CLASSES: {"sums": f.count_right}, LABELS: {"sums": f.count_all_right}},
    "f1": {
        CLASSES: {"sums": f.confusion, "value": f.macro_f1},
        LABELS: {"sums": f.label_confusion, "value": f.label_macro_f1},
    },
    "f1-micro": {
        CLASSES: {"sums": f.confusion, "value": f.micro_f1},
        LABELS: {"sums": f.label_confusion, "value": f.micro_f1},
    },
    "auc": {CLASSES: {"whole": f.auc}, LABELS: {"whole": f.label_auc}},
    "perplexity": {CLASSES: {"sums": f.sum_cross_entropy, "value": f.perplexity}},
    "mse": {NUMBERS: {"sums": f.sum_squared_errors}},
    "mae": {NUMBERS: {"sums": f.sum_absolute_errors}},
    "r2": {NUMBERS: {"whole": f.r2}},
    "loss": {CLASSES: {}, NUMBERS: {}, LABELS: {}},
}


def as_list(given: str | Own | Sequence[str | Own] | None) -> list[str | Own]:
    """Return metrics as a list: names with commas between them, one function, or a sequence of both."""
    if given is None:
        return []
    parts = given.split(",") if isinstance(given, str) else [given] if callable(given) else list(given)
    return [part.strip() if isinstance(part, str) else part for part in parts]


def metrics_for(data: Dataset, given: str | Own | Sequence[str | Own] | None, held: bool) -> tuple[Metric, ...]:
    """Return the metrics of a run on a data set; refuse some that nothing would be measured by.

    ``held``: some training samples are kept for validation.
    """
    if given is not None and not data.has_test and not held:
        raise FedsmooError(
            f"metrics: {data.name!r} has no test part to measure them on: leave them out (the training loss leads), or "
            "keep samples for validation with holdout, such as 0.2"
        )
    return make_metrics(given, data.target, data.classes)


def make_metrics(
    given: str | Own | Sequence[str | Own] | None, target: str = CLASSES, classes: int = 0
) -> tuple[Metric, ...]:
    """Return metrics, the first of which leads.

    Args:
        given: names, ``path/to/file.py:function`` with or without a ``-`` before it, and functions; ``None``: the one
            that goes with the target.
        target: what the targets are.
        classes: how many classes or labels there are.

    Raises:
        FedsmooError: for names that nobody has, metrics of other targets, and the same twice.
    """
    found = as_list(given) or [DEFAULT[target]]
    made = tuple(make_metric(one, target, classes) for one in found)
    names = [m.name for m in made]
    for name in names:
        if names.count(name) > 1:
            raise FedsmooError(f"metrics: {name!r} is there twice: leave one out, or rename a function")
    return made


def make_metric(given: str | Own, target: str, classes: int) -> Metric:
    """Return one metric by its name, from a file, or of a function."""
    if not isinstance(given, str):
        if not callable(given) or isinstance(given, type):
            kind = given.__name__ if isinstance(given, type) else type(given).__name__
            raise FedsmooError(f"metrics: a {kind} is neither a name nor a function of ({', '.join(ARGUMENTS)})")
        return own_metric(given, getattr(given, "__name__", type(given).__name__).strip("<>"), lower=False)
    name = given.removeprefix("-")
    if is_in_file(name):
        return own_metric(user_object(name, "metric"), name.rpartition(":")[2], lower=given.startswith("-"))
    if TOP.fullmatch(name):
        return top_k(int(name.removeprefix("top-")), target, classes)
    if name not in COMPUTED:
        raise unknown("metric", given, [*EXAMPLES, "path/to/file.py:function"])
    if given != name:
        raise FedsmooError(f"metrics: {given!r}: whether more of {name} is better is known: write {name!r}")
    if target not in COMPUTED[name]:
        fitting = [n for n, of in COMPUTED.items() if target in of and n != "loss"]
        raise FedsmooError(f"metric {name!r} is not for {target}, which the targets are: use {', '.join(fitting)}")
    return Metric(QUANTITIES[name], **COMPUTED[name][target])


def top_k(k: int, target: str, classes: int) -> Metric:
    """Return the metric ``top-k``."""
    if target != CLASSES:
        raise FedsmooError(f"metric 'top-{k}' is for classes, but the targets are {target}")
    if 0 < classes <= k:
        raise FedsmooError(
            f"metric 'top-{k}' of {classes} classes is always 1: choose a smaller number, or leave it out"
        )
    return Metric(quantity(f"top-{k}"), f.count_in_top(k))


def own_metric(function: Own, name: str, lower: bool) -> Metric:
    """Return a user's function as a metric; ``lower_is_better`` of the function says so, too."""
    what = f"metric {name!r}"
    if not callable(function) or isinstance(function, type):
        raise FedsmooError(f"{what} is a {type(function).__name__}, but must be a function of ({', '.join(ARGUMENTS)})")
    if name in COMPUTED or TOP.fullmatch(name) or name in QUANTITIES:
        raise FedsmooError(f"metrics: a function called {name!r} would be taken for the metric of that name: rename it")
    refuse_other_arguments(function, what, ARGUMENTS)
    less = lower or bool(getattr(function, "lower_is_better", False))
    return Metric(
        quantity(name, (name,) if less else ()), whole=functools.partial(call_checked, function, what), mine=True
    )


def call_checked(function: Own, what: str, outputs: Tensor, targets: Tensor) -> float:
    """Call a user's metric; refuse what is no number."""
    found = call(function, what, outputs, targets)
    if hasattr(found, "item"):  # of a tensor or an array with one number
        with suppress(ValueError, RuntimeError):
            found = found.item()
    if not isinstance(found, numbers.Real):
        shape = f" of the shape {list(found.shape)}" if hasattr(found, "shape") else ""
        raise FedsmooError(f"{what} returned a {type(found).__name__}{shape}, but must return one number")
    return float(found)
