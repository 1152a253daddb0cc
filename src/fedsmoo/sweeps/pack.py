"""Several runs in one batch: seeds, and settings that are plain numbers, of one method advance together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsmoo.core import FedsmooError
from fedsmoo.data.sources import depends_on_seed
from fedsmoo.engines.client_state.memory import bytes_per_client
from fedsmoo.engines.client_state.tiers import first_that_fits, row_bytes
from fedsmoo.engines.devices import synchronize
from fedsmoo.engines.failure import explained
from fedsmoo.engines.steps.stack import stackable
from fedsmoo.runs.build import assemble, make_method
from fedsmoo.runs.config import FIELDS, Config, free_within
from fedsmoo.runs.division import rule_in_force
from fedsmoo.runs.origin.contents import hash_user_files
from fedsmoo.runs.origin.method import own_method_of_config
from fedsmoo.runs.origin.pins import with_pinned_engine
from fedsmoo.runs.record import Callback
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.files import read_json
from fedsmoo.runs.storage.names import CONFIG, STARTED
from fedsmoo.runs.watch.state import says_stop
from fedsmoo.sweeps.grid import run_name

# What runs of one batch may differ in: the seed, plain numbers of the step, and the method's own plain numbers.
FREE = free_within("batch")


def packable(configs: Sequence[Config]) -> bool:
    """Return whether configs may share a batch: the same method, model, data and shape of a round."""
    first = configs[0]
    same = [name for name in FIELDS if name not in FREE]
    if first.sampling != "uniform" or any(getattr(c, n) != getattr(first, n) for c in configs for n in same):
        return False
    if len({c.seed for c in configs}) > 1 and depends_on_seed(first.dataset):  # each seed has data of its own
        return False
    if any(rule is not None and rule.changes_inputs for rule, _ in map(rule_in_force, configs)):
        return False  # each run's clients see the samples in their own way
    if first.chunk is not None and first.chunk < first.cohort * len(configs):
        return False
    return stackable([make_method(c).at(0) for c in configs])


def names_in_batch(configs: Sequence[Config], simulations: Sequence[Simulation]) -> list[str]:
    """Return the names of the runs in a batch, in its order."""
    return [
        run_name(c, hash_user_files(c, s.setup.task.data), own_method_of_config(c))
        for c, s in zip(configs, simulations, strict=True)
    ]


def with_one_engine(batch: Mapping[Path, Config]) -> list[Config]:
    """Return the configs with the engine of those that were begun; none if these have several."""
    begun = {
        with_pinned_engine(c, read_json(p / STARTED), None).engine for p, c in batch.items() if (p / CONFIG).is_file()
    }
    if len(begun) > 1:
        return []
    return [c.replace(engine=next(iter(begun), c.engine)) for c in batch.values()]


def assemble_pack(configs: Sequence[Config]) -> list[Simulation]:
    """Assemble the simulations of configs that may share a batch; the data is on the device once."""
    if not packable(configs):
        raise FedsmooError("these runs differ in more than seeds and plain numbers: they cannot share a batch")
    first = assemble(configs[0])
    data, place = first.setup.task.data, shared_tier(first, len(configs), configs[0])
    if place != configs[0].table:
        configs = [c.replace(table=place) for c in configs]
        first = assemble(configs[0], data=data)
    return [first, *(assemble(c, data=data) for c in configs[1:])]


def shared_tier(first: Simulation, runs: int, config: Config) -> str:
    """Return where client state lives when several runs share a device: where the rows of all of them fit."""
    if config.table != "auto" or not first.setup.algorithm.own:
        return config.table
    clients = len(first.indices)
    rows = row_bytes(first.setup) * min(clients, config.cohort * config.rounds)
    working = config.cohort * bytes_per_client(first.setup)
    return first_that_fits(runs * rows, runs * working, first.setup.task.device)


def refuse_other_models(simulations: Sequence[Simulation]) -> None:
    """Refuse models that differ in more than their parameters: runs in one batch are trained by the first one's."""
    first = simulations[0]
    model, x = first.setup.task.model, first.setup.task.inputs(first.setup.task.data.x_train[:2])
    for other in simulations[1:]:
        theirs = other.setup.task.model
        if theirs is not model and not (theirs.same_frozen(model) and theirs.same_function(model, first.server.w, x)):
            raise FedsmooError(
                "runs in one batch have different frozen parameters, or tensors in their models that are no "
                "parameters: make them the same for every seed (read them from a file), or run one at a time "
                "(sweep with --pack 1)"
            )


class Pack:
    """Simulations that advance together, a round of all of them at a time."""

    def __init__(self, simulations: Sequence[Simulation]) -> None:
        self.simulations = list(simulations)
        for s in self.simulations:
            s.runs_in_batch = len(self.simulations)
        first, *others = (s.engine for s in self.simulations)
        self.name, self.batch = first.name, first.share(others)
        with explained(self.name, first=True):
            refuse_other_models(self.simulations)

    def run(self, callbacks: Sequence[Callback | None] | None = None) -> list[Result]:
        """Carry out all rounds that are left."""
        calls = list(callbacks or [None] * len(self.simulations))
        going = list(range(len(self.simulations)))
        while going := [i for i in going if self._unfinished(i)]:
            for i, record in zip(going, self.advance(going), strict=True):
                call = calls[i]
                if call is not None and says_stop(call(record)):
                    going = [k for k in going if k != i]
        return [Result(s.history, s.server, s) for s in self.simulations]

    def _unfinished(self, i: int) -> bool:
        return len(self.simulations[i].history) < self.simulations[i].training.rounds

    def advance(self, going: Sequence[int]) -> list:
        """Carry out one round of the runs that are going; each is charged its share of the time."""
        began = time.perf_counter()
        runs = [self.simulations[i] for i in going]

        def meanwhile() -> None:
            for s in runs:
                s.draw_next_round()

        with explained(self.name, first=not any(s.history for s in runs)):
            works = [s.prepare() for s in runs]
            outcomes = self.batch.run_round(dict(zip(going, works, strict=True)), meanwhile)
            if len(runs) > 1:  # the first would be charged for what the device does for all
                synchronize(runs[0].setup.task.device)
            share = (time.perf_counter() - began) / len(runs)
            done = zip(runs, works, outcomes, strict=True)
            return [s.complete(w, o, time.perf_counter() - share) for s, w, o in done]
