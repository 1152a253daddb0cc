"""What a run leaves in Python: its history, the trained module, and the vectors of the server and the clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.runs.record import Record, best_validated, last_accuracy, last_personal
from fedsmoo.runs.traffic import Reached, reached

if TYPE_CHECKING:
    import pandas as pd

    from fedsmoo.runs.simulation import Simulation


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
        algorithm, masks = run.method_at(max(len(self.history) - 1, 0)), run.setup.masks
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
