"""What a run leaves: a record of every round, and the result at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.runs.traffic import Reached, reached

if TYPE_CHECKING:
    import pandas as pd

    from fedsmoo.runs.simulation import Simulation


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

    def values(self) -> dict[str, Any]:
        """Return the fields as plain values; without what was measured on samples held out, where there were none."""
        return {n: v for n, v in asdict(self).items() if n not in HELD_OUT or v is not None}

    def reached(self, accuracy: float) -> bool:
        """Whether this round was evaluated and is as accurate as that."""
        return self.test_accuracy is not None and self.test_accuracy >= accuracy


PERSONAL = ("personal_accuracy", "personal_deviation", "personal_worst_tenth")
GLOBAL = ("global_accuracy", "global_deviation", "global_worst_tenth")
HELD_OUT = ("validation_accuracy", *PERSONAL, *GLOBAL)  # fields that only runs with a holdout have

Callback = Callable[[Record], Any]


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


@dataclass
class Result:
    """What a run leaves: its history, the trained module, and the vectors of the server and the clients.

    A run that was kept has a ``folder`` and, once its last round is done, the ``summary`` that lies there.
    """

    history: list[Record]
    server: Vectors
    simulation: Simulation
    folder: Path | None = None
    summary: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Say it in a line, for a prompt or a notebook."""
        evaluated = any(record.test_accuracy is not None for record in self.history)
        accuracy = f", test accuracy {self.accuracy:.2%}" if evaluated else ""
        return f"<Result: {len(self.history)} rounds{accuracy}{f', in {self.folder}' if self.folder else ''}>"

    @property
    def frame(self) -> pd.DataFrame:
        """The history, one row a round."""
        import pandas as pd  # late: it takes half a second

        return pd.DataFrame([r.values() for r in self.history])

    @property
    def model(self) -> nn.Module:
        """A copy of the module with the final global weights, in eval mode; a new one every time."""
        return self.simulation.setup.task.model.export(self.server.w)

    @property
    def accuracy(self) -> float:
        """Test accuracy of the last evaluated round; an error if a callback stopped the run before there was one."""
        return last_accuracy(self.history)

    @property
    def validated(self) -> Record | None:
        """The best round by validation accuracy, the first of several; ``None`` without ``holdout``."""
        return best_validated(self.history)

    @property
    def personal(self) -> dict[str, float]:
        """How personal models serve their clients, and the global one beside them; empty without such, or ``holdout``.

        Mean, deviation and worst tenth over the clients met, each on its own samples, of the last evaluated round.
        """
        return last_personal(self.history)

    def personal_model(self, client: int) -> nn.Module:
        """Return a copy of the module with a client's personal weights, in eval mode; the global ones without such."""
        run, row = self.simulation, self.client_state(client)
        algorithm, masks = run.setup.algorithm.at(max(len(self.history) - 1, 0)), run.setup.masks
        down = masks.sent(algorithm, self.server)
        me = algorithm.first_contact(down) if row is None else Vectors(**row).map(lambda v: v.to(self.server.w.device))
        w = algorithm.personal(down, me)
        return run.setup.task.model.export(self.server.w if w is None else w)

    @property
    def target_reached(self) -> Reached | None:
        """Round, bytes and seconds when ``target`` was first reached; ``None`` if it never was, or none was set."""
        target = self.simulation.training.target
        return None if target is None else reached(self.history, target)

    def client_state(self, client: int) -> dict[str, Tensor] | None:
        """Return a client's own vectors, or ``None`` if it was never in a cohort."""
        if client not in range(len(self.simulation.indices)):
            raise FedsmooError(f"there is no client {client!r}: they are 0 to {len(self.simulation.indices) - 1}")
        return dict(self.simulation.engine.table.items()).get(client)
