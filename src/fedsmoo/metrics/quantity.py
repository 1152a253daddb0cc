"""The numbers by which models are compared: what they are called, whether more is better, and how they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.share import count_of_share

TOP = re.compile(r"top-([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Quantity:
    """A number that says how good a model is.

    ``percent``: a share of the samples, written in per cent. ``within``: its largest value is 1, which a target
    cannot exceed. ``part``: of the data that it is measured on, before its label.
    """

    name: str
    label: str
    higher: bool = True
    percent: bool = False
    within: bool = False
    part: str = "test "

    @property
    def title(self) -> str:
        """What it is, in words: ``test accuracy``."""
        return f"{self.part}{self.label}"

    @property
    def axis(self) -> str:
        """What it is, with its unit: ``test accuracy (%)``."""
        return f"{self.title} (%)" if self.percent else self.title

    @property
    def factor(self) -> int:
        """What values are multiplied by where :attr:`axis` stands beside them."""
        return 100 if self.percent else 1

    def text(self, value: float) -> str:
        """Write a value: ``81.20%``, ``0.1234``."""
        return f"{self.number(value)}%" if self.percent else self.number(value)

    def number(self, value: float, sign: str = "") -> str:
        """Write a value where :attr:`axis` says its unit: ``81.20``, ``0.1234``; ``sign`` as of a format, ``"+"``."""
        if self.percent:
            return f"{100 * value:{sign}.2f}"
        return f"{value:{sign}.4f}" if 1e-3 <= abs(value) < 1000 or value == 0 else f"{value:{sign}.4g}"

    def goal(self, value: float) -> str:
        """Write a target, without digits that nobody gave: ``80%``, ``0.25``."""
        return f"{round(100 * value, 6):g}%" if self.percent else f"{value:g}"

    def key(self, value: float) -> float:
        """Return a number that is larger for a better value."""
        return value if self.higher else -value

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of some values; ``None`` if there are none. NaN is no value."""
        return max((v for v in values if not math.isnan(v)), key=self.key, default=None)

    def reaches(self, value: float | None, target: float) -> bool:
        """Return whether a value is as good as a target; one that was not measured is not."""
        return value is not None and self.key(value) >= self.key(target)

    def nearly(self, best: float) -> float:
        """Return a target a tenth worse than a value: nine tenths of an accuracy, down to a per cent, or two digits.

        >>> quantity("accuracy").nearly(0.7), quantity("mse").nearly(0.112)
        (0.63, 0.13)
        """
        if not math.isfinite(100 * best):
            return best
        if self.percent:
            return count_of_share(90, best) / 100 or 0.01
        worse = best - 0.1 * abs(best) * self.key(1.0)
        if worse == 0:
            return 0.0
        unit = 10.0 ** (1 - math.floor(math.log10(abs(worse))))
        digits = round(worse * unit, 9)
        return round((math.floor if self.higher else math.ceil)(digits) / unit, 15)

    def refuse_target(self, target: float | None) -> None:
        """Refuse a target that no value reaches, such as an accuracy in per cent."""
        if target is None:
            return
        if self.within and self.higher and not 0 < target <= 1:
            article = "an" if self.label[0] in "aeioAF" else "a"  # an accuracy, an F1 score
            what = f"{article} {self.label} between 0 and 1, such as 0.8"
            raise FedsmooError(f"target is {target:g}, but is {what}")
        if not math.isfinite(target) or (not self.higher and target < 0 and self.within):
            raise FedsmooError(f"target is {target:g}, but no {self.label} is ever that low")


ACCURACY = Quantity("accuracy", "accuracy", percent=True, within=True)
TRAIN_LOSS = Quantity("train_loss", "training loss", higher=False, within=True, part="")
QUANTITIES: dict[str, Quantity] = {
    q.name: q
    for q in (
        ACCURACY,
        Quantity("f1", "F1 score", within=True),
        Quantity("f1-micro", "micro F1 score", within=True),
        Quantity("auc", "AUC", within=True),
        Quantity("mse", "mean squared error", higher=False, within=True),
        Quantity("mae", "mean absolute error", higher=False, within=True),
        Quantity("r2", "R²"),
        Quantity("perplexity", "perplexity", higher=False, within=True),
        Quantity("loss", "loss", higher=False),
        TRAIN_LOSS,
    )
}


def own_metrics(given: str | None) -> list[str]:
    """Return those of metrics with commas between them that are functions in users' files, ``path/to/file.py:name``.

    >>> own_metrics("accuracy,-my/file.py:regret")
    ['my/file.py:regret']
    """
    found = [] if given is None or given.startswith("python:") else given.split(",")
    return [name.strip().removeprefix("-") for name in found if ":" in name]


def quantity(name: str, lower: Collection[str] = ()) -> Quantity:
    """Return what is known of a metric by its name; of a user's own, ``lower`` says whether less of it is better.

    >>> quantity("accuracy").text(0.812), quantity("mse").text(0.25), quantity("regret", ["regret"]).higher
    ('81.20%', '0.2500', False)
    """
    if name in QUANTITIES:
        return QUANTITIES[name]
    if TOP.fullmatch(name):
        return Quantity(name, f"{name} accuracy", percent=True, within=True)
    return Quantity(name, name, higher=name not in lower)
