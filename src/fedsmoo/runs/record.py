"""What is measured in a round of a run, and what a history of rounds says at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedsmoo.core import FedsmooError


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
    changes: dict[str, Any] = field(
        default_factory=dict
    )  # what a callback changed after the round, from the next one on

    def values(self) -> dict[str, Any]:
        """Return the fields as plain values; without what was measured on samples held out, where there were none, and
        without changes, where nobody made any."""
        there = {n: v for n, v in asdict(self).items() if n not in HELD_OUT or v is not None}
        return there if self.changes else {n: v for n, v in there.items() if n != "changes"}

    def numbers(self) -> dict[str, float | None]:
        """Return every number of the round by its name, also those that were asked for besides."""
        plain = {n: v for n, v in self.values().items() if v is None or isinstance(v, int | float)}
        return {**plain, **self.probes}

    def reached(self, accuracy: float) -> bool:
        """Whether this round was evaluated and is as accurate as that."""
        return self.test_accuracy is not None and self.test_accuracy >= accuracy


PERSONAL = ("personal_accuracy", "personal_deviation", "personal_worst_tenth")
GLOBAL = ("global_accuracy", "global_deviation", "global_worst_tenth")
HELD_OUT = ("validation_accuracy", *PERSONAL, *GLOBAL)  # fields that only runs with a holdout have

Callback = Callable[..., Any]  # of a record, or of a record and the run's state after it


def refuse_wrong_options(save_every: Any = None, callback: Any = None) -> None:
    """Refuse rounds between checkpoints that are no count, and a callback that cannot be called."""
    if save_every is not None and (type(save_every) is not int or save_every < 0):
        raise FedsmooError(f"save_every is {save_every!r}, but must be a number of rounds; 0: only when stopped")
    if callback is not None and not callable(callback):
        raise FedsmooError(f"callback is {callback!r}, but must be a function of a round's record")


def last_accuracy(history: Sequence[Record]) -> float:
    """Return the accuracy of the last evaluated round; ``FedsmooError`` if there is none."""
    for record in reversed(history):
        if record.test_accuracy is not None:
            return record.test_accuracy
    raise FedsmooError(
        f"none of the {len(history)} rounds so far was evaluated, so there is no accuracy: run longer, or set "
        "eval_every lower"
    )


def served(accuracies: np.ndarray) -> dict[str, float]:
    """Return a record's fields from each client's accuracy with its personal model and the global one, ``[n, 2]``."""
    from fedsmoo.analysis.functions.fairness import tenth  # late: few runs have personal models

    out: dict[str, float] = {}
    for names, values in zip((PERSONAL, GLOBAL), accuracies.T, strict=True):
        out |= dict(zip(names, (float(values.mean()), float(values.std()), tenth(values)), strict=True))
    return out


def last_personal(history: Sequence[Record]) -> dict[str, float]:
    """Return how clients are served at the last round in which that was measured, by field; empty if in none."""
    for record in reversed(history):
        if record.personal_accuracy is not None:
            return {n: getattr(record, n) for n in (*PERSONAL, *GLOBAL)}
    return {}


def best_validated(history: Sequence[Record]) -> Record | None:
    """Return the round whose model was best on the samples held out, the first of several; the test part has no say."""
    there = [r for r in history if r.validation_accuracy is not None]
    return max(there, key=lambda r: r.validation_accuracy or 0.0) if there else None
