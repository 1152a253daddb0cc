"""The contract of engines: what one is given each round, what it returns, and what other rooms may ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsmoo.core import Algorithm, FedsmooError, LocalRule, Round, Vectors
from fedsmoo.core.layout import Masks
from fedsmoo.data.batches.plan import Plan
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.task import Samples, Task
from fedsmoo.metrics.tally import Scores

if TYPE_CHECKING:
    from fedsmoo.engines.personal import PersonalInputs

Meanwhile = Callable[[], None]  # host work for the time in which the device is busy


@dataclass(frozen=True)
class Setup:
    """Everything an engine needs for a whole run."""

    task: Task
    algorithm: Algorithm
    rule: LocalRule

    @cached_property
    def masks(self) -> Masks:
        """The method's masks on the model; a ``FedsmooError`` where one matches no parameter."""
        like = torch.empty(0, dtype=self.task.dtype, device=self.task.device)
        return Masks.bind(self.algorithm, self.task.model.layout, like)


@dataclass(frozen=True)
class RoundInputs:
    """What an engine is given for one round: what is sent, to which clients, and on which batches they train.

    ``weights`` sum to 1 over the cohort. ``algorithm`` is the method in this round: schedules are numbers, which other
    rounds have otherwise. ``varies`` says whether other rounds may have cohorts of other sizes.
    """

    number: int
    down: Vectors
    clients: list[int]
    plan: Plan
    lr: float
    share: float
    weights: list[float]
    algorithm: Algorithm
    varies: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # of each client, as Round names them: rows [n, ...]

    def facts_of(self, part: slice | int | list[int]) -> dict[str, Any]:
        """Return what methods are told of some clients of the cohort; what they cannot be told is said to all."""
        return {name: v[part] if isinstance(v, Tensor) else v for name, v in self.facts.items()}

    def round_of(self, c: int) -> Round:
        """Return what one client of the cohort, by its position, is told of the round."""
        return Round(self.number, self.lr, int(self.plan.steps[c]), self.share, **self.facts_of(c))


def no_reduce(v: Tensor) -> Tensor:
    """Return ``v``: the sum over all processes where there is only one."""
    return v


@dataclass(frozen=True)
class RoundOutcome:
    """The weighted mean of what the cohort sent, every reply of declared rows, and measurements of the training."""

    mean: Vectors  # of what is sent, but for rows
    measured: Tensor  # float64 [2], still on the device: loss and drift
    clients: int = 0  # how many there were
    moved: Tensor | None = None  # sum of w_i - w over the clients of this process
    all_reduce: Callable[[Tensor], Tensor] = no_reduce  # sums a tensor over all processes
    rows: Vectors | None = None  # [n, P], in the order of the cohort: what the method's server sees client by client

    @cached_property
    def _read(self) -> list[float]:
        """Wait for the device: whoever has more work for it had better queue that first."""
        found: list[float] = self.measured.tolist()
        return found

    @property
    def loss(self) -> float:
        """The mean minibatch loss over clients and their steps."""
        return self._read[0]

    @property
    def drift(self) -> float:
        """The mean ||w_i - w||^2."""
        return self._read[1]

    def drift_from(self, before: Tensor, after: Tensor) -> float | None:
        """Return mean ||w_i - w'||^2 with w' the model ``after`` the server's step, w the one ``before``.

        The w_i are not kept until then. With d_i = w_i - w and g = w' - w it is mean ||d_i||^2 - 2 mean <d_i, g> +
        ||g||^2, whose first term is ``drift``: exact up to rounding. ``None`` where ``moved`` is not known.
        """
        if self.moved is None:
            return None
        step = (after - before).double()
        product = self.all_reduce(self.moved.double() @ step) / self.clients
        found = torch.stack([product, step @ step]).tolist()  # one transfer
        return max(self.drift - 2 * found[0] + found[1], 0.0)


class SharedBatch(Protocol):
    """Several runs whose clients train in one batch, as :meth:`Engine.share` makes it."""

    def run_round(self, inputs: Mapping[int, RoundInputs], meanwhile: Meanwhile | None = None) -> list[RoundOutcome]:
        """Run one round of some of the runs, by their position, and return their outcomes in the same order."""
        ...


class Engine(ABC):
    """Trains the clients of a cohort and averages what they send.

    This class is all that other rooms know of engines: they call its methods, assign none of its attributes and never
    ask which subclass they have. The defaults are those of an engine that trains one client after the other, in one
    process.
    """

    name: str
    chosen: str  # why it was, in a few words
    table: ClientTable
    can_share: bool = False  # whether runs may train in one batch: see :meth:`share`

    @property
    def why(self) -> str:
        """Why the engine was chosen, and since it works, what of it cannot go its fastest way."""
        return self.chosen

    @property
    def clients_at_once(self) -> int | None:
        """How many clients train at once, in cohorts that have as many; ``None``: one after the other.

        Sums over clients depend on it in their last bits.
        """
        return None

    def pin(self, clients_at_once: int | None = None, why: str | None = None) -> None:
        """Go on as an earlier part of the run: with as many clients at once, chosen for the reason given.

        A number of clients that the settings name (``chunk``) stays as it is.
        """
        if why is not None:
            self.chosen = why

    def share(self, others: Sequence[Engine]) -> SharedBatch:
        """Train the clients of this engine's run and of the others' in one batch, with this engine's gradients.

        Raises:
            FedsmooError: if this engine, or another one, trains one run at a time.
        """
        raise one_run_at_a_time(self)

    def serve(self) -> None:
        """On ranks other than 0, after the last round: answer rank 0 until it ends the job. Else do nothing."""
        return

    def ahead(self, clients: list[int], plan: Plan) -> None:
        """Get ready for the round that comes next, of these clients, while the device is busy with the present one."""
        self.table.prefetch(clients)

    @abstractmethod
    def run_round(self, inputs: RoundInputs, meanwhile: Meanwhile | None = None) -> RoundOutcome:
        """Run one round of local training; ``meanwhile`` is called where the host would otherwise wait."""

    def personal(self, inputs: PersonalInputs) -> Tensor:
        """Return the leading metric of clients' personal models and of the global one on their samples, ``[n, 2]``."""
        raise FedsmooError(f"the {self.name} engine evaluates no personal models: use engine=serial")

    @abstractmethod
    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        """Return loss and metrics of a model on the test part, or on other samples."""


def one_run_at_a_time(engine: Engine) -> FedsmooError:
    """Return the error of an engine that cannot share a batch."""
    return FedsmooError(f"the {engine.name} engine trains one run at a time: use engine=batched")


class Contribution(NamedTuple):
    """What a client, or several in sum, add to a round; rows may be views of buffers, good until the next step."""

    up: Vectors  # what is sent, but for rows, with the clients' weights
    loss: Tensor
    drift: Tensor  # ||w_i - w||^2
    moved: Tensor | None = None  # w_i - w, where it is known
    rows: Vectors = Vectors()  # [C, P]: what the method's server sees client by client


@dataclass
class Sums:
    """Sums of contributions, and rows of each client, in the order in which they are added; ``clients`` in all."""

    clients: int
    up: Vectors | None = None
    loss: Tensor | float = 0.0
    drift: Tensor | float = 0.0
    moved: Tensor | None = None
    rows: Vectors | None = None  # memory of their own: steps answer with views of buffers
    filled: int = 0
    added: bool = False  # whether ``up`` and ``moved`` are sums, in memory of their own
    place: torch.device | None = None  # where rows are kept, if not where they were made

    def add(self, part: Contribution) -> None:
        """Add what one client, or several, contribute.

        Later values are added into the memory of the second: the first ones are still their owner's.
        """
        into, self.added = self.added, self.up is not None
        mine, up, moved = self.up, part.up, part.moved
        self.up = up if mine is None else Vectors(**{n: plus(getattr(mine, n), v, into) for n, v in up.items()})
        self.loss, self.drift = self.loss + part.loss, self.drift + part.drift
        self.moved = moved if self.moved is None or moved is None else plus(self.moved, moved, into)
        if part.rows.names():
            self._keep(part.rows)

    def _keep(self, rows: Vectors) -> None:
        if self.rows is None:
            self.rows = rows.map(lambda v: v.new_empty(self.clients, v.shape[-1], device=self.place or v.device))
        begin, self.filled = self.filled, self.filled + len(getattr(rows, rows.names()[0]))
        for name, v in rows.items():
            getattr(self.rows, name)[begin : self.filled] = v

    def outcome(self) -> RoundOutcome:
        """Return the round's outcome."""
        assert self.up is not None
        both = torch.stack([torch.as_tensor(self.loss), torch.as_tensor(self.drift)]).double()
        return RoundOutcome(self.up, both / self.clients, self.clients, self.moved, rows=self.rows)


def plus(a: Tensor, b: Tensor, into: bool) -> Tensor:
    """Return ``a + b``, in the memory of ``a`` if that may be written ``into``."""
    return a.add_(b) if into and a.shape == b.shape and a.dtype == b.dtype else a + b
