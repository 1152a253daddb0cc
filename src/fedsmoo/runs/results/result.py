"""What a run leaves in Python: its history, the trained module, and the vectors of the server and the clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedsmoo.algorithms.statistics import NAME
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.errors import as_path
from fedsmoo.core.layout import other_sizes
from fedsmoo.metrics.quantity import ACCURACY, Quantity
from fedsmoo.runs.record import (
    Callback,
    Record,
    accuracies_of,
    best_validated,
    frame_row,
    last_personal,
    last_score,
    lead_of,
    scores_of,
)
from fedsmoo.runs.traffic import Reached, first_reached

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedsmoo.runs.config import Config
    from fedsmoo.runs.simulation import Simulation


@dataclass(repr=False, eq=False)
class Result:
    """What a run leaves: its history, the trained module, and the vectors of the server and the clients.

    A run that was kept has a ``folder`` and, once its last round is done, the ``summary`` that lies there. One that was
    stopped by Ctrl-C is marked ``interrupted``.
    """

    history: list[Record]
    server: Vectors
    simulation: Simulation
    folder: Path | None = None
    summary: dict[str, Any] | None = None
    config: Config | None = None  # the settings; what no setting names is there as python:Name
    interrupted: bool = False

    def __repr__(self) -> str:
        """Say it in a line, for a prompt or a notebook."""
        scores, lead = scores_of(self.history), self.lead
        last = f", {lead.title} {lead.text(scores[-1])}" if scores else ""
        stopped = ", interrupted" if self.interrupted else ""
        folder = f", in {self.folder}" if self.folder else ""
        return f"<Result: {self.label}, {len(self.history)} rounds{last}{stopped}{folder}>"

    def _repr_html_(self) -> str:
        """Return a small table for a notebook."""
        from fedsmoo.runs.results.html import result_html

        return result_html(self)

    @property
    def label(self) -> str:
        """The method's name."""
        return self.simulation.setup.algorithm.label

    @property
    def frame(self) -> pd.DataFrame:
        """The history, one row a round."""
        import pandas as pd  # late: it takes half a second

        return pd.DataFrame([frame_row(r) for r in self.history])

    @property
    def model(self) -> nn.Module:
        """A copy of the module with the final global weights, in eval mode; a new one every time."""
        run = self.simulation
        return run.setup.task.model.export(self.server.w, run.statistics_of(self.server))

    @property
    def state_dict(self) -> dict[str, Tensor]:
        """The final global weights under the module's own names, ready for ``load_state_dict``."""
        run = self.simulation
        return run.setup.task.model.state_dict(self.server.w, run.statistics_of(self.server))

    @property
    def accuracy(self) -> float:
        """Test accuracy of the last evaluated round; an error if a callback stopped the run before there was one."""
        last = last_score(self.history)
        if self.lead == ACCURACY:
            return last
        found = accuracies_of(self.history)
        if not found:
            raise FedsmooError(f"this run measures no accuracy, but {self.lead.title}: use result.score")
        return found[-1]

    @property
    def lead(self) -> Quantity:
        """The metric that leads: its name, whether more is better, and how it is written."""
        return lead_of(self.history)

    @property
    def score(self) -> float:
        """The leading metric in the last evaluated round; an error if there was none."""
        return last_score(self.history)

    @property
    def metrics(self) -> dict[str, float | None]:
        """All metrics of the last evaluated round, by name; the first leads."""
        last = next((r for r in reversed(self.history) if r.evaluated), None)
        return {} if last is None else dict(last.metrics) or {ACCURACY.name: last.test_accuracy}

    @property
    def validated(self) -> Record | None:
        """The best round on the samples held out, the first of several; ``None`` without ``holdout``."""
        return best_validated(self.history)

    @property
    def personal(self) -> dict[str, float]:
        """How personal models serve their clients, and the global one beside them; empty without such, or ``holdout``.

        Mean, deviation and worst tenth over the clients met, each on its own samples, of the last evaluated round.
        """
        return last_personal(self.history)

    @property
    def target_reached(self) -> Reached | None:
        """Round, bytes and seconds when ``target`` was first reached; ``None`` if it never was, or none was set."""
        target = (self.config or self.simulation.training).target
        return None if target is None else first_reached(self.history, target)

    def personal_model(self, client: int) -> nn.Module:
        """Return a copy of the module with a client's personal weights, in eval mode; the global ones without such."""
        from fedsmoo.runs.results.clients import personal_weights

        run = self.simulation
        w, statistics = personal_weights(self, client, run.statistics_of(self.server))
        return run.setup.task.model.export(self.server.w if w is None else w, statistics)

    def client_state(self, client: int) -> dict[str, Tensor] | None:
        """Return a client's own vectors, flat, or ``None`` if it was never in a cohort; empty where it keeps none."""
        if client not in range(len(self.simulation.indices)):
            raise FedsmooError(f"there is no client {client!r}: they are 0 to {len(self.simulation.indices) - 1}")
        self.refuse_moved_on("client_state")
        row = dict(self.simulation.engine.table.items()).get(client)
        if row is None and any(client in record.cohort for record in self.history):
            return {}  # of a method whose clients keep nothing, a checkpoint has no rows
        return row

    def client(self, client: int) -> dict[str, Any] | None:
        """Return a client's own vectors by parameter name, or ``None`` if it was never in a cohort.

        ``result.client(3)["c"]["fc.weight"]`` has the parameter's shape; what a method keeps as one number stays one.
        """
        row = self.client_state(client)
        return None if row is None else self.by_name(row)

    def by_name(self, vectors: Mapping[str, Tensor] | Vectors) -> dict[str, Any]:
        """Return flat vectors, such as those of ``result.server``, by parameter name."""
        model, sizes = self.simulation.setup.task.model, other_sizes(self.simulation.setup.algorithm)
        kept = {} if model.statistics is None else {NAME: model.statistics.split}
        whole = {n: model.layout.split for n, _ in vectors.items() if n not in sizes} | kept
        return {n: whole[n](v) if n in whole else v for n, v in vectors.items()}

    def evaluate_clients(self, on: str = "auto") -> pd.DataFrame:
        """Evaluate the global model, and personal ones where the method has such, on every client's own samples.

        Args:
            on: ``"train"``, the samples that clients train on; ``"held"``, those that they hold out (``holdout``);
                ``"test"``, test samples of their own, where the data has such; ``"auto"``, the best there is: held,
                test, train.

        Returns:
            One row a client: how many samples, metrics and loss; and those of its personal model. A client that never
            took part has the one that it would begin with; the means in ``personal`` leave it out.
        """
        from fedsmoo.runs.results.clients import evaluate_clients

        return evaluate_clients(self, on)

    def plot(self, metric: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a number over the rounds; returns the matplotlib axes. ``fedsmoo.plot`` draws several results in one."""
        from fedsmoo.runs.results.curves import plot  # late: matplotlib takes a while to import

        return plot(self, metric, ax)

    def continue_(
        self,
        rounds: int | None = None,
        *,
        callback: Callback | None = None,
        out: str | PathLike[str] | None = None,
        progress: bool | str | None = "auto",
    ) -> Result:
        """Carry out so many more rounds (default: those that are left), and return the result of all of them.

        The numbers are those of a run of all these rounds at once, to the last bit; only that the round where it was
        joined was evaluated, as every last round is. This result stays as it is, but for its clients' own vectors,
        which went on.

        Args:
            rounds: how many more. The learning rate decays on, and schedules move on, as the settings say.
            callback, progress: as of :func:`fedsmoo.simulate`.
            out: also keep the whole run in this new folder.
        """
        from fedsmoo.runs.results.carry import continue_result

        return continue_result(self, rounds, callback, None if out is None else as_path(out, "out"), progress)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result as a new run folder, which :func:`fedsmoo.load` and every command reads; returns it.

        It holds the history, the model, and the vectors of the server and of all clients, as JSON and safetensors.
        """
        from fedsmoo.runs.results.carry import save

        return save(self, as_path(path, "path"))

    def refuse_moved_on(self, what: str) -> None:
        """Refuse what needs the clients' vectors where these are not those of this result any more."""
        done = len(self.simulation.history)
        if done != len(self.history):
            raise FedsmooError(
                f"{what}: this result was continued to {done} rounds, and its clients went on: ask that one"
            )
        if self.simulation.midway and self.simulation.engine.table.names:
            raise FedsmooError(
                f"{what}: the run was stopped in the middle of round {done + 1}, and some clients' own vectors are of "
                "that round already: they fit no model"
            )
