"""What is measured in a round of a run, and what a history of rounds says at its end."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.metrics.average import mean
from fedsmoo.metrics.quantity import ACCURACY, TRAIN_LOSS, Quantity, quantity

if TYPE_CHECKING:
    from fedsmoo.metrics.metric import Metric
    from fedsmoo.metrics.tally import Scores

TEN = 10  # evaluations in a mean at the end of a run


@dataclass(frozen=True)
class Record:
    """What is measured in one round."""

    round: int  # counted from 1
    test_accuracy: float | None  # None where the round was not evaluated
    test_loss: float | None
    train_loss: float | None  # None where a Bernoulli cohort was empty
    drift: float | None  # mean ||w_i - w||^2 over the cohort
    lr: float
    cohort: list[int]
    bytes_up: int
    bytes_down: int
    seconds_train: float
    seconds_eval: float
    probes: dict[str, float] = field(default_factory=dict)  # measurements asked for besides, such as sharpness
    drift_after: float | None = None  # mean ||w_i - w'||^2, w' being the model after the server's step
    validation_accuracy: float | None = None  # on the samples held out of training, where there are any
    personal_accuracy: float | None = None  # of personal models, each on what its client holds out: mean over clients
    personal_deviation: float | None = None  # over clients
    personal_worst_tenth: float | None = None  # mean of the worst tenth of the clients
    global_accuracy: float | None = None  # of the global model, on the same samples of the same clients
    global_deviation: float | None = None
    global_worst_tenth: float | None = None
    # What a callback changed after the round, from the next one on.
    changes: dict[str, Any] = field(default_factory=dict)
    # Of runs that are not led by the accuracy alone: all metrics by name, the first of which leads.
    metrics: dict[str, float | None] = field(default_factory=dict)
    lower: list[str] = field(default_factory=list)  # metrics of the user's own of which less is better
    validation_metrics: dict[str, float | None] = field(default_factory=dict)  # on the samples held out
    personal_score: float | None = None  # in place of accuracies, where another metric leads
    global_score: float | None = None

    def values(self) -> dict[str, Any]:
        """Return the fields as plain values; without those that only some runs have, where there is nothing in them."""
        return {n: v for n, v in asdict(self).items() if n not in RARE or (v is not None and v not in ({}, []))}

    def numbers(self) -> dict[str, float | None]:
        """Return every number of the round by its name, also those that were asked for besides."""
        plain = {n: v for n, v in self.values().items() if v is None or isinstance(v, int | float)}
        held = {f"validation_{n}": v for n, v in self.validation_metrics.items()}
        return {**plain, **self.probes, **self.metrics, **held}

    @property
    def lead(self) -> Quantity:
        """The metric that leads: the first of several, or the accuracy."""
        return lead_among(self.metrics, self.lower)

    @property
    def evaluated(self) -> bool:
        """Whether the model was evaluated after this round; of outputs that diverged a metric has no value even so."""
        return bool(self.metrics) or self.test_accuracy is not None

    @property
    def score(self) -> float | None:
        """The value of the metric that leads; ``None`` where the round was not evaluated, or it has none."""
        return next(iter(self.metrics.values())) if self.metrics else self.test_accuracy

    @property
    def validation(self) -> float | None:
        """The first metric on the samples held out of training, where there are any."""
        return next(iter(self.validation_metrics.values()), self.validation_accuracy)

    def reached(self, target: float) -> bool:
        """Whether this round was evaluated and is as good as a target: as accurate, or, of an error, as low."""
        return self.lead.reaches(self.score, target)


PERSONAL = ("personal_accuracy", "personal_deviation", "personal_worst_tenth")
GLOBAL = ("global_accuracy", "global_deviation", "global_worst_tenth")
SCORES = ("personal_score", "global_score")  # in place of accuracies
HELD_OUT = ("validation_accuracy", *PERSONAL, *GLOBAL, *SCORES)  # numbers that only runs with a holdout have
RARE = (*HELD_OUT, "changes", "metrics", "lower", "validation_metrics")

# Columns that a round's numbers share with metrics: its own, and those of a comparison.
TAKEN = {*(f.name for f in fields(Record)), "method", "seed"}

Callback = Callable[..., Any]  # of a record, or of a record and the run's state after it


def refuse_wrong_arguments(save_every: Any = None, callback: Any = None) -> None:
    """Refuse rounds between checkpoints that are no count, and a callback that cannot be called."""
    if save_every is not None and (type(save_every) is not int or save_every < 0):
        raise FedsmooError(f"save_every is {save_every!r}, but must be a number of rounds; 0: only when stopped")
    if callback is not None and not callable(callback):
        raise FedsmooError(f"callback is {callback!r}, but must be a function of a round's record")


def refuse_taken_names(metrics: Iterable[Metric]) -> None:
    """Refuse metrics of the user's own whose name is another number's of a round: only one of the two would be seen."""
    for name in (m.name for m in metrics if m.mine):
        if name in TAKEN or name.startswith("validation_"):
            said = f"a function called {name!r} would take the place of a number of a round: rename it"
            raise FedsmooError(f"metrics: {said}")


def evaluation_fields(scores: Scores | None, train_loss: float | None, lower: Sequence[str] = ()) -> dict[str, Any]:
    """Return a record's fields from an evaluation on the test part; without a test part the training loss leads."""
    if scores is None:
        found = {} if train_loss is None else {TRAIN_LOSS.name: train_loss}
        return {"test_accuracy": None, "test_loss": None, "metrics": found, "lower": list(lower)}
    fields: dict[str, Any] = {"test_accuracy": scores.metrics.get(ACCURACY.name), "test_loss": scores.loss}
    if [*scores.metrics] != [ACCURACY.name]:
        fields |= {"metrics": scores.metrics, "lower": list(lower)}
    return fields


def validation_fields(scores: Scores) -> dict[str, Any]:
    """Return a record's fields from an evaluation on the samples held out."""
    fields: dict[str, Any] = {"validation_accuracy": scores.metrics.get(ACCURACY.name)}
    return fields if [*scores.metrics] == [ACCURACY.name] else {**fields, "validation_metrics": scores.metrics}


def frame_row(record: Record) -> dict[str, Any]:
    """Return a record as a row of a table: metrics by their names, without tables inside."""
    inner = ("metrics", "lower", "validation_metrics")
    return {n: v for n, v in record.values().items() if n not in inner} | {
        **record.metrics,
        **{f"validation_{n}": v for n, v in record.validation_metrics.items()},
    }


def lead_among(metrics: Mapping[str, Any], lower: Sequence[str]) -> Quantity:
    """Return the first of several metrics; without any, the accuracy."""
    return quantity(next(iter(metrics)), lower) if metrics else ACCURACY


def personal_fields(values: np.ndarray, lead: Quantity = ACCURACY) -> dict[str, float]:
    """Return a record's fields from each client's score with its personal model and the global one, ``[n, 2]``.

    Clients for whose samples a metric has no value (NaN) are left out. If it has one of the one model, but not of the
    other, that diverged: without it a mean would be too good, so there is none.
    """
    from fedsmoo.analysis.functions.fairness import mean_of_lowest_tenth  # late: few runs have personal models

    out: dict[str, float] = {}
    known = values[np.isfinite(values).any(1)]
    for names, each in zip((PERSONAL, GLOBAL), known.T, strict=True):
        if not np.isfinite(each).all():
            what, whose = lead.title.removeprefix("test "), names[0].removesuffix("_accuracy")
            told = f"the {what} of some {whose} models is no number, as they diverged: no mean over clients is given"
            warnings.warn(told, FedsmooWarning, stacklevel=2)
        elif len(each):
            worst = mean_of_lowest_tenth(each) if lead.higher else -mean_of_lowest_tenth(-each)
            mean = names[0] if lead == ACCURACY else names[0].replace("accuracy", "score")
            out |= dict(zip((mean, *names[1:]), (float(each.mean()), float(each.std()), worst), strict=True))
    return out


def lead_of(history: Iterable[Record]) -> Quantity:
    """Return the metric that leads in a run: that of its first evaluated round."""
    return next((r.lead for r in history if r.evaluated), ACCURACY)


def scores_of(history: Iterable[Record]) -> list[float]:
    """Return the values of the leading metric in the evaluated rounds; NaN where it has none, as of a model that
    diverged: left out, the rounds before would pass for the end of the run."""
    return [math.nan if r.score is None else r.score for r in history if r.evaluated]


def accuracies_of(history: Iterable[Record]) -> list[float]:
    """Return the test accuracies of the evaluated rounds, NaN where there is none; empty if no round has one."""
    found = [r.test_accuracy for r in history if r.evaluated]
    return [math.nan if v is None else v for v in found] if any(v is not None for v in found) else []


def last_mean(scores: Sequence[float]) -> float:
    """Return the mean of the last ten values, or of all if they are fewer; NaN if one of them is no finite number.

    Whoever says how well a run ended, by whichever metric, says this.

    >>> last_mean([0.0, *[0.5] * 9, 1.0]), last_mean([0.1, math.nan, 0.3]), last_mean([])
    (0.55, nan, nan)
    """
    ends = scores[-TEN:]
    return mean(ends) if ends and all(map(math.isfinite, ends)) else math.nan


def count_without_number(scores: Sequence[float]) -> int:
    """Count which of the last ten values are no finite numbers, so that they have no mean."""
    return sum(not math.isfinite(v) for v in scores[-TEN:])


def say_no_number(count: int, scores: int) -> str:
    """Say that so many of a run's last evaluations found no number.

    >>> say_no_number(2, 30), say_no_number(3, 3)
    ('no number in 2 of the last ten evaluations', 'no number in 3 of the last 3 evaluations')
    """
    return f"no number in {count} of the last {'ten' if scores >= TEN else scores} evaluations"


def last_score(history: Sequence[Record]) -> float:
    """Return the leading metric of the last evaluated round, NaN if it has none; ``FedsmooError`` without a round."""
    found = scores_of(history)
    if not found:
        raise FedsmooError(
            f"none of the {len(history)} rounds so far was evaluated, so there is no accuracy or other metric: run "
            "longer, or set eval_every lower"
        )
    return found[-1]


def last_personal(history: Sequence[Record]) -> dict[str, float]:
    """Return how clients are served at the last evaluated round, by field; empty if that is not known.

    What models are without that diverged, no earlier round says.
    """
    last = next((r for r in reversed(history) if r.evaluated), None)
    found = {n: getattr(last, n, None) for n in (*PERSONAL, *GLOBAL, *SCORES)}
    return {n: v for n, v in found.items() if v is not None}


def best_validated(history: Sequence[Record]) -> Record | None:
    """Return the round whose model was best on the samples held out, the first of several; the test part has no say."""
    keys = [
        (lead_among(r.validation_metrics, r.lower).key(r.validation), r) for r in history if r.validation is not None
    ]
    return max(keys, key=lambda both: both[0])[1] if keys else None
