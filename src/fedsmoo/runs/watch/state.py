"""What a callback sees of a run after every round, and what it may do: stop it, log to it, change its numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import brief
from fedsmoo.engines.distributed.launcher import world
from fedsmoo.runs.record import Record
from fedsmoo.runs.watch.changes import checked_change

if TYPE_CHECKING:
    from fedsmoo.runs.simulation import Simulation


class RoundState:
    """A run after a round, for a callback of two arguments: ``def callback(record, state)``."""

    def __init__(self, simulation: Simulation, record: Record) -> None:
        self.simulation, self.record = simulation, record
        self.stopped = False
        self._added: dict[str, dict[str, Any]] = {"probes": {}, "changes": {}}  # by log and set

    def __repr__(self) -> str:
        return f"<RoundState: after round {self.round} of {self.rounds}>"

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.record.round

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self.simulation.training.rounds

    @property
    def history(self) -> list[Record]:
        """The records of all rounds so far, this one's last."""
        return list(self.simulation.history)

    @property
    def metrics(self) -> dict[str, float]:
        """What was measured in this round, by name; what was not measured is not there."""
        return {name: value for name, value in self.record.numbers().items() if value is not None}

    @property
    def model(self) -> nn.Module:
        """A copy of the module with the global weights as they are now, in eval mode; made when it is asked for."""
        run = self.simulation
        return run.setup.task.model.export(run.server.w, run.statistics_of(run.server))

    @property
    def lr(self) -> float:
        """The local learning rate of the next round."""
        return self.simulation.lr

    def stop(self) -> None:
        """Stop the run after this round, as a callback does that returns ``False``."""
        self.stopped = True

    def log(self, name: str, value: float) -> None:
        """Add a number to the round's record, where measurements (``probes``) are: it is kept with the run."""
        taken = {*self.record.values(), *self.record.numbers()}
        if not isinstance(name, str) or not name or name in taken:
            why = "is there already" if name in taken else "is no name"
            raise FedsmooError(f"state.log: {brief(name)} {why}: choose another name for what is logged")
        number: Any = value
        if isinstance(number, np.generic) or (isinstance(number, Tensor) and number.numel() == 1):
            number = number.item()
        if not isinstance(number, Real) or not math.isfinite(number):
            raise FedsmooError(f"state.log: {name} is {brief(value)}, but must be a finite number")
        self.record.probes[name] = self._added["probes"][name] = float(number)

    def set(self, **numbers: Any) -> None:
        """Change numbers from the next round on: ``lr``, or hyper-parameters of the method, which may be schedules.

        A learning rate that is set decays from there on, as the settings say. The round's record keeps what was changed
        (``changes``), so that the run is resumed with it and not taken for the one without.
        """
        if world() > 1:
            raise FedsmooError("state.set: several ranks share this run, and only one was told: use a schedule instead")
        checked = {n: checked_change(self.simulation.setup.algorithm, n, v) for n, v in numbers.items()}
        self.record.changes.update(checked)
        self._added["changes"].update(checked)
        self.simulation.note_changes()


def takes_state(callback: Any) -> bool:
    """Return whether a callback asks for the state beside the record: by a second argument that must be given."""
    try:
        given = list(inspect.signature(callback).parameters.values())
    except (TypeError, ValueError):  # of a function written in C, Python cannot say
        return False
    places = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in places if p.default is p.empty]
    if len(required) > 2:
        raise FedsmooError(f"callback takes {len(required)} arguments, but is called with the record and the state")
    return len(required) == 2 or (len(places) > 1 and places[1].name == "state")


def with_state(callback: Callable[..., Any], simulation: Simulation) -> Callable[[Record], Any]:
    """Return a callback of one argument, the record; one that takes the state is called before the record is kept."""
    if not takes_state(callback):

        def looked(record: Record) -> Any:
            with kept_as_it_is(record, {}):
                return callback(record)

        return looked
    answer: Any = None

    def look(record: Record) -> None:
        nonlocal answer
        state = RoundState(simulation, record)
        with kept_as_it_is(record, state._added):
            answer = callback(record, state)
        answer = False if state.stopped else answer

    simulation.observer = look
    return lambda record: answer


@contextmanager
def kept_as_it_is(record: Record, added: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Refuse that a callback changes what a record holds: it says what a run did, and what the next round does.

    ``added`` is what the state adds meanwhile, by the record's fields.
    """
    before: dict[str, Any] = {n: copy(v) for n, v in vars(record).items() if isinstance(v, dict | list)}
    yield
    for name, value in before.items():
        if getattr(record, name) != (value | added[name] if name in added else value):
            raise FedsmooError(
                f"the callback changed {name} in the record of round {record.round}, which says what the run did: a "
                "callback of (record, state) adds a number by state.log, and changes one of the run by state.set"
            )


def says_stop(answer: Any) -> bool:
    """Whether a callback said stop: ``False``, Python's, NumPy's or a tensor's; ``None`` and 0 are no such word."""
    if isinstance(answer, Tensor) and answer.dim() == 0 and answer.dtype == torch.bool:
        return not bool(answer)
    return isinstance(answer, bool | np.bool_) and not answer
