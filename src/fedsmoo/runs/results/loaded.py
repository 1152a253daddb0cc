"""A result read back from a run folder: its simulation is made again when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.algorithms.choices import CHOICES
from fedsmoo.algorithms.statistics import NAME
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.user_code import is_in_file, judged
from fedsmoo.runs.build import assemble, make_method
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.objects import PREFIX, objects_in
from fedsmoo.runs.origin.pins import pin_clients_at_once, with_pinned_engine
from fedsmoo.runs.origin.provenance import task_hash
from fedsmoo.runs.origin.samples import refuse_other_data
from fedsmoo.runs.origin.trust import permit
from fedsmoo.runs.record import Record
from fedsmoo.runs.results.finished import refuse_damaged_model
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.resume import restore
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import Checkpoint, newest
from fedsmoo.runs.storage.names import CHECKPOINT, MODEL
from fedsmoo.runs.storage.reader import StoredRun, read_run

ARGUMENTS = {"dataset": "data", "split": "client_indices"}  # settings that simulate has other names for
Make = Callable[[Config], Simulation]  # the simulation of a config, at its start


class LoadedResult(Result):
    """The result in a run folder, as far as it was written there; of a run under way, as of its newest checkpoint."""

    def __init__(self, run: StoredRun, saved: Checkpoint | None, make: Make) -> None:
        done = len(run.history) if run.state == "finished" or saved is None else saved.round
        self.history: list[Record] = run.history[:done]
        self.folder, self.summary, self.config = run.path, run.summary or None, run.config
        self.interrupted = False
        self._run, self._saved, self._make = run, saved, make

    @property
    def label(self) -> str:
        """The method's name: what a sweep calls it, or its class and what is put around it, where no file has code."""
        config = self._run.config
        name = config.algorithm
        if not self._run.label and not objects_in(config) and not any(map(is_in_file, named_classes(config))):
            with suppress(FedsmooError):  # of options that an earlier version knew
                return make_method(config).label
        known = ALGORITHMS.get(name.lower())
        own = known.__name__ if known else name.removeprefix(PREFIX).partition("@")[0].rpartition(":")[2]
        return self._run.label or own

    @property
    def state_dict(self) -> dict[str, Tensor]:
        """The global weights under the module's own names, from the folder alone where they are there."""
        if (self._run.path / MODEL).is_file():
            refuse_damaged_model(self._run.path)
            return load_file(self._run.path / MODEL)
        return super().state_dict

    @cached_property
    def server(self) -> Vectors:  # type: ignore[override]
        """The server's vectors; the model alone where no checkpoint was kept."""
        task = self.simulation.setup.task
        if self._saved is not None:
            return self.simulation.server
        model, state = task.model, self.state_dict
        found = {"w": model.flatten(state)}
        if model.statistics is not None:  # those that a state dict leaves out are as they were at the start
            found[NAME] = model.statistics.join({**model.statistics.split(model.statistics.first), **state}, task.dtype)
        return Vectors(**{n: v.to(task.device, task.dtype) for n, v in found.items()})

    @cached_property
    def simulation(self) -> Simulation:  # type: ignore[override]
        """The run's simulation, where the run is; ``FedsmooError`` if the objects or data are not those of the run."""
        path, saved, config = self._run.path, self._saved, self._run.config
        pins = saved.about if saved is not None else self._run.started
        simulation = self._make(with_pinned_engine(config, pins, None))
        pin_clients_at_once(simulation, pins.get("chunk"))
        refuse_other_data(pins, simulation.setup.task.data, path)
        if saved is None:
            return simulation
        if saved.about["task"] != task_hash(simulation):
            raise FedsmooError(f"the data or its division among clients is not what {path} was started with")
        restore(simulation, saved, self._run.history[: saved.round], path)
        if (path / MODEL).is_file():
            refuse_other_model(simulation, self.state_dict, path)
        return simulation

    def refuse_moved_on(self, what: str) -> None:
        """Refuse what needs the clients' vectors where they were not kept, or have moved on."""
        if self._saved is None:
            raise FedsmooError(f"{what}: {self._run.path} has no checkpoint, and so no vectors but the model's")
        super().refuse_moved_on(what)


def named_classes(config: Config) -> list[str]:
    """Return the names of the method and of what is put around it; such a name may be that of a file."""
    return [config.algorithm, *(getattr(config, setting) for setting in CHOICES)]


def refuse_other_model(simulation: Simulation, kept: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a model whose parameters are not called, or not laid out, as those of the run are."""
    mine = simulation.setup.task.model.state_dict(simulation.refresh())
    if mine.keys() != kept.keys() or not all(torch.equal(mine[n].cpu(), v) for n, v in kept.items()):
        raise FedsmooError(f"the model is not the one of the run in {path}: its parameters differ")


def load_result(path: Path, make: Make, given: Collection[str], trust: bool) -> LoadedResult:
    """Read the result in a run folder.

    Args:
        path: the folder.
        make: makes the run's simulation, at its start.
        given: the settings whose objects ``make`` has.
        trust: run the code that it names although the user has not run it before.
    """
    run = read_run(path)
    if not run.history:
        raise FedsmooError(f"{path} holds no round yet: there is no result to load")
    saved, _ = newest(path / CHECKPOINT)
    if saved is None and not (path / MODEL).is_file():
        raise FedsmooError(f"{path} holds neither a model nor a checkpoint yet: there is no result to load")

    def made(config: Config) -> Simulation:
        if missing := {n: v for n, v in objects_in(config).items() if n not in given}:
            words = ", ".join(f"{ARGUMENTS.get(n, n)}={v.partition('@')[0]}" for n, v in missing.items())
            raise FedsmooError(f"the run in {path} has parts that no setting names: give them, load(path, {words})")
        with judged(permit(config, f"the run in {path}", trust)):
            return make(config)

    return LoadedResult(run, saved, made)


def result_in(path: Path) -> LoadedResult:
    """Return the result of a run whose settings name all of it."""
    return load_result(path, assemble, (), trust=False)
