"""What a run leaves: a record of every round, and the result at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    def values(self) -> dict[str, Any]:
        """Return the fields as plain values; without the validation accuracy where nothing was validated."""
        return {n: v for n, v in asdict(self).items() if n != "validation_accuracy" or v is not None}

    def reached(self, accuracy: float) -> bool:
        """Whether this round was evaluated and is as accurate as that."""
        return self.test_accuracy is not None and self.test_accuracy >= accuracy


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
    def target_reached(self) -> Reached | None:
        """Round, bytes and seconds when ``target`` was first reached; ``None`` if it never was, or none was set."""
        target = self.simulation.training.target
        return None if target is None else reached(self.history, target)

    def client_state(self, client: int) -> dict[str, Tensor] | None:
        """Return a client's own vectors, or ``None`` if it was never in a cohort."""
        if client not in range(len(self.simulation.indices)):
            raise FedsmooError(f"there is no client {client!r}: they are 0 to {len(self.simulation.indices) - 1}")
        return dict(self.simulation.engine.table.items()).get(client)
