"""What a measurement of finished runs is: its options, what it measures, its table, its probe, and what a page trusts.

A measurement is a class in a file of this room; nothing else has to know it. Commands, probes and pages go through
:func:`measurements`. The files of this room are read for ``--help`` already, so they import PyTorch and what needs it,
``functions/`` among it, inside the functions that compute.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.hyper.options import option, refuse_outside
from fedsmoo.core.untrusted import number, text

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fedsmoo.analysis.functions.objective import Objective
    from fedsmoo.core import Algorithm, Vectors
    from fedsmoo.engines.client_state.table import ClientTable
    from fedsmoo.engines.contract import RoundInputs, Setup
    from fedsmoo.engines.task import Task

Values = dict[str, Any]  # ready for JSON
PROBED = 1000  # samples of the training part in a probe: enough to follow a trend, cheap enough to be asked often


class Subject(Protocol):
    """A finished run, opened: what a measurement may look at."""

    @property
    def path(self) -> Path: ...

    @property
    def name(self) -> str: ...

    @property
    def task(self) -> Task: ...

    @property
    def w(self) -> Tensor: ...

    @property
    def indices(self) -> list[np.ndarray]: ...

    @property
    def algorithm(self) -> Algorithm: ...

    @property
    def method(self) -> Algorithm: ...

    @property
    def config(self) -> Any: ...

    def vectors(self) -> tuple[Vectors, dict[int, dict[str, Tensor]]]:
        """Return the server's and the clients' vectors of the newest checkpoint."""


@dataclass(frozen=True)
class Moment:
    """A run in progress, after a round: what a probe may look at."""

    setup: Setup
    server: Vectors
    table: ClientTable
    indices: Sequence[np.ndarray]
    work: RoundInputs

    @property
    def loss(self) -> Objective:
        from fedsmoo.analysis.functions.objective import objective

        return objective(self.setup.task, "train", PROBED, size=min(PROBED, 500))


@dataclass(frozen=True)
class Measurement:
    """One kind of measurement; its fields are its options, and flags of ``fedsmoo analyse NAME``.

    With ``together``, so many runs (least, most) are measured as one, and the result is kept beside the first.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()
    together: ClassVar[tuple[int, int] | None] = None
    also: ClassVar[tuple[type[Measurement], ...]] = ()  # measured and kept with it
    nothing: ClassVar[str] = ""  # why there may be nothing to measure
    all_clients: ClassVar[bool] = False  # its probe reads the vectors of all clients in one process

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if (value := getattr(self, f.name)) is not None:
                refuse_outside(f.name, value, f.metadata)

    def measure(self, run: Subject, *others: Subject) -> Values:
        """Measure one run, or several together; empty where there is nothing to measure."""
        raise NotImplementedError

    def rows(self, name: str, values: Values) -> list[list[str]]:
        """Return what stands in a table: a run's name and a word for each column."""
        return []

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
        """Return what a page shows of a file that anybody may have written: by default its numbers, by name."""
        return {text(k, 80): n for k, v in list(values.items())[:100] if (n := number(v)) is not None}

    @classmethod
    def probe(cls, now: Moment) -> dict[str, float]:
        """Measure a run in progress, cheaply; a class without this has no probe."""
        raise NotImplementedError


@dataclass(frozen=True)
class OnSamples(Measurement):
    """A measurement of the loss on samples of a part of the data."""

    part: str = option("train", "measure on the train or the test part")
    samples: int | None = option(None, "only so many samples of it (default: all)")
    size: int = option(1000, "samples in memory at a time", within="(0, inf)")
    seed: int = option(0, "seed of subsamples, directions and probes", within="[0, inf)")

    def loss(self, run: Subject) -> Objective:
        from fedsmoo.analysis.functions.objective import objective

        return objective(run.task, self.part, self.samples, self.seed, self.size)

    def about(self, loss: Objective) -> Values:
        """Say what was measured on, for the file."""
        return {"part": loss.part, "samples": loss.samples}

    @staticmethod
    def measured_on(values: Values) -> str:
        return f"{values['samples']} ({values['part']})"


@cache
def measurements() -> dict[str, type[Measurement]]:
    """Find the measurements of this room, by name."""
    import fedsmoo.analysis as room

    modules = [importlib.import_module(f"{room.__name__}.{m.name}") for m in pkgutil.iter_modules(room.__path__)]
    found = [
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Measurement) and thing.__module__ == module.__name__
    ]
    return {cls.name: cls for cls in found if hasattr(cls, "name")}


def refuse_not_positive(name: str, value: float) -> None:
    """Refuse a length that is none, nan and inf among them."""
    if not 0 < value < math.inf:
        raise FedsmooError(f"{name} is {value:g}, but must be above 0 and finite")


def json_numbers(values: Any) -> list[float | None]:
    """Return numbers for JSON, which knows no nan."""
    import numpy as np

    return [v if math.isfinite(v) else None for v in np.asarray(values, float).tolist()]
