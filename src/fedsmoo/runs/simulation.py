"""The rounds of a run: cohort, local training, aggregation, evaluation, record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.algorithms.statistics import NAME, recomputes
from fedsmoo.core import Algorithm, FedsmooError, Vectors
from fedsmoo.core.server import Replies, is_evaluated, mean_of_no_replies, round_of, server_step, weights_of
from fedsmoo.data.batches.augment import drawing
from fedsmoo.data.batches.cohort import Sampling, asks_for_losses, cohort, is_fixed, make_sampling
from fedsmoo.data.batches.plan import Plan, make_plan, usual_steps
from fedsmoo.data.batches.rules import Ask
from fedsmoo.engines.client_state.memory import refuse_too_many_rows
from fedsmoo.engines.contract import Engine, RoundInputs, RoundOutcome, Setup
from fedsmoo.engines.devices import synchronize
from fedsmoo.engines.facts import Facts
from fedsmoo.engines.failure import explained
from fedsmoo.engines.looking.fitting import refuse_no_features, refuse_reduced_loss
from fedsmoo.engines.personal import PersonalInputs
from fedsmoo.engines.statistics.recompute import drawn_samples, recompute
from fedsmoo.runs.record import Callback, Record, evaluation_fields, personal_fields, validation_fields
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.traffic import round_bytes
from fedsmoo.runs.watch.changes import Change, changes_in, lr_at, method_at
from fedsmoo.runs.watch.state import says_stop, with_state

if TYPE_CHECKING:
    from fedsmoo.analysis.probes import Schedule


class Simulation:
    """A federated run that advances one round at a time.

    ``indices[i]`` are client i's training samples. All randomness comes from streams named by the seed, the round and
    the client, so the state of a run is the server's vectors, the client table and the history; nothing else.
    """

    def __init__(
        self,
        setup: Setup,
        engine: Engine,
        training: Training,
        indices: Sequence[np.ndarray],
        w: Tensor | None = None,
        sampling: Sampling | None = None,
        held: Sequence[np.ndarray] | None = None,
    ) -> None:
        if training.cohort > len(indices):
            raise FedsmooError(
                f"a cohort of {training.cohort} out of {len(indices)} clients: lower cohort or raise clients"
            )
        self.sizes = tuple(map(len, indices))  # of all clients, who may be hundreds of thousands
        if empty := [i for i, size in enumerate(self.sizes) if size == 0]:
            raise FedsmooError(f"client {empty[0]} has no samples ({len(empty)} such clients): change the partition")
        self.setup, self.engine, self.training, self.indices = setup, engine, training, indices
        self.held = held  # of each client's samples those held out, where any are
        self.tests = None if held is not None else setup.task.data.own_tests(indices)  # else test samples of its own
        self.sampling = sampling or make_sampling(training.sampling)
        refuse_too_many_rows(setup, training.cohort)
        task = setup.task
        start = (task.model.initial() if w is None else w).to(task.device, task.dtype)
        task.model.place(task.device, task.dtype)
        refuse_reduced_loss(task)
        refuse_no_features(task, setup.algorithm)
        with explained(engine.name):
            self.server = setup.algorithm.at(0).init(start)
            _ = setup.masks  # bound now: a pattern that matches nothing is refused
        self._fresh = True  # whether the server's statistics are those of its model
        self._hold()
        self.facts = Facts(task, indices)
        self.history: list[Record] = []
        self.changes: list[Change] = []  # what callbacks changed in it
        # Called with every record before anybody else sees it, to add to it: see runs.watch.state.
        self.observer: Callable[[Record], Any] | None = None
        self.midway = False  # within a round: clients' rows may be newer than the server's vectors
        self.runs_in_batch = 1  # itself among them
        self._drawn: dict[int, tuple[list[int], Plan]] = {}
        self._asked: set[int] = set()  # for their losses, before the round
        self.width = min(training.batch_size, max(self.sizes))
        self.probes: Schedule | None = None
        if training.probe is not None:
            from fedsmoo.analysis import probes  # late: most runs have none

            self.probes = probes.Schedule.parse(training.probe).suits(engine.table)

    def restore(
        self, server: Vectors, rows: Iterable[tuple[int, dict[str, Tensor]]], history: Sequence[Record]
    ) -> None:
        """Go on from a saved state: the server's vectors, the rows of the clients met, and the rounds so far."""
        device = self.setup.task.device
        shapes = {n: (v.shape, v.dtype) for n, v in self.server.items()}
        if {n: (v.shape, v.dtype) for n, v in server.items()} != shapes:
            raise FedsmooError("the saved vectors do not fit this method and model: they come from another run")
        self._take(server.map(lambda v: v.to(device)))
        for client, row in rows:
            self.engine.table.load(client, {n: v.to(device) for n, v in row.items()})
        self.history = list(history)
        self.note_changes()

    def note_changes(self) -> None:
        """Let what the history says was changed be in force from the next round on."""
        self.changes = changes_in(self.history)

    def method_at(self, number: int) -> Algorithm:
        """Return the method in a round, counted from 0: schedules are numbers, and what was changed is in force."""
        return method_at(self.setup.algorithm, self.changes, number)

    def _take(self, server: Vectors) -> None:
        """Go on with the server's vectors; statistics that nobody sends are then of an earlier model."""
        self.server, self._fresh = server, not recomputes(self.setup.algorithm)
        self._hold()

    def refresh(self) -> Tensor:
        """Return the global model; where nobody sends its statistics, those that are held are computed, if not its."""
        if not self._fresh and (found := self.statistics_of(self.server)) is not None:
            self.server, self._fresh = self.server.replace(statistics=found), True
        self._hold()
        return self.server.w

    def statistics_of(self, server: Vectors) -> Tensor | None:
        """Return the running statistics of a global model of this run; ``None`` of a model without."""
        t = self.training
        if NAME not in server.names() or not recomputes(self.setup.algorithm):
            return dict(server.items()).get(NAME)
        return recompute(self.setup.task, server.w, drawn_samples(self.indices, t.batch_size, t.seed), t.seed)

    def _hold(self) -> None:
        """Have the model evaluated, exported and saved with the server's statistics."""
        if NAME in self.server.names():
            self.setup.task.model.hold(self.server.statistics)

    @property
    def clients_at_once(self) -> int | None:
        """How many clients train at once: sums depend on it in the last bits. None: one after the other."""
        at_once = self.engine.clients_at_once
        return None if at_once is None else min(at_once, self.largest_cohort)

    @property
    def largest_cohort(self) -> int:
        """How many clients a round may have."""
        return self.training.cohort if is_fixed(self.sampling) else len(self.indices)

    @property
    def lr(self) -> float:
        """The local learning rate of the next round."""
        return lr_at(self.training, self.changes, len(self.history))

    def draw_round(self, number: int) -> tuple[list[int], Plan]:
        """Draw the clients of a round and their batches: what can be known before the round starts."""
        t = self.training
        ask = Ask(self.sizes, lambda ids: self.facts.losses(ids, self.refresh()))
        clients = cohort(t.seed, number, len(self.indices), t.cohort, self.sampling, ask)
        self._asked = ask.asked
        return clients, self.plan(number, clients)

    def draw_next_round(self) -> None:
        """Prepare the round after the present one, while the device is busy with the present one."""
        number = len(self.history) + 1
        # A rule that asks for losses asks at the model of the present round, which is not there yet.
        if number < self.training.rounds and not asks_for_losses(self.sampling):
            clients, plan = self.draw_round(number)
            self._drawn = {number: (clients, plan)}
            self.engine.ahead(clients, plan)
            self.facts.ahead(clients, plan, self.method_at(number))

    def plan(self, number: int, clients: list[int]) -> Plan:
        """Return the batches of a cohort in a round."""
        t, task = self.training, self.setup.task
        draw = drawing(task.data.x_train.shape[1]) if task.augment else None  # images are [N, H, W, channels]
        return make_plan(t.seed, number, clients, self.indices, t.batch_size, t.epochs, t.local_steps, draw, self.width)

    def advance(self) -> Record:
        """Carry out one round."""
        began, self.midway = time.perf_counter(), True
        with explained(self.engine.name, first=not self.history):  # what worked before does fit
            work = self.prepare()
            outcome = self.engine.run_round(work, self.draw_next_round) if work.clients else None
            record = self.complete(work, outcome, began)
        self.midway = False
        if self.observer is not None:
            self.observer(record)
        return record

    def prepare(self) -> RoundInputs:
        """Return the inputs of the next round: who is sent what, on which batches."""
        number, t = len(self.history), self.training
        clients, plan = self._drawn.pop(number) if number in self._drawn else self.draw_round(number)
        refuse_too_many_rows(self.setup, len(clients) * self.runs_in_batch)
        algorithm = self.method_at(number)
        if "loss" in algorithm.asks:
            self.refresh()
        down = self.setup.masks.sent(algorithm, self.server)
        share = (algorithm.expects or len(clients)) / len(self.indices)
        weights = weights_of(t, [len(self.indices[i]) for i in clients])
        varies, facts = not is_fixed(self.sampling), self.facts.told(clients, plan, algorithm, down.w)
        return RoundInputs(number, down, clients, plan, self.lr, share, weights, algorithm, varies, facts)

    def complete(self, work: RoundInputs, outcome: RoundOutcome | None, began: float) -> Record:
        """Aggregate what the cohort sent, evaluate and record. A round without clients changes nothing but by noise."""
        t, task = self.training, self.setup.task
        if outcome is not None or work.algorithm.expects is not None:
            self._aggregate(work, outcome)
        synchronize(task.device)
        trained = time.perf_counter()
        mean = None if outcome is None else outcome.loss
        found: dict[str, Any] = {"test_accuracy": None, "test_loss": None}
        if is_evaluated(t, work.number):
            self.refresh()
            found = {**self._evaluated(mean), **self._served(work)}
        after = None if outcome is None else outcome.drift_from(work.down.w, self.server.w)
        probes = {} if self.probes is None else self._probe(work)
        # What a message needs: the zeros behind the parameters, which align a vector on a device, need not travel.
        size = task.model.layout.count - self.setup.masks.staying
        up, down = round_bytes(self.setup.algorithm, size, task.dtype, work.clients, self._asked)
        drift, seconds = None if outcome is None else outcome.drift, (trained - began, time.perf_counter() - trained)
        record = Record(
            round=work.number + 1, train_loss=mean, drift=drift, lr=work.lr, cohort=work.clients,
            bytes_up=up, bytes_down=down, seconds_train=seconds[0], seconds_eval=seconds[1],
            probes=probes, drift_after=after, **found,
        )  # fmt: skip
        self.history.append(record)
        return record

    def _aggregate(self, work: RoundInputs, outcome: RoundOutcome | None) -> None:
        """Make the server's new vectors of what the cohort sent.

        Raises:
            FedsmooError: if they are not finite.
        """
        t = self.training
        rnd, replies = round_of(t, work.number, work.plan.steps, work.weights, work.share, work.lr), None
        loss: float | Tensor = 0.0
        if outcome is None:
            rnd = dataclasses.replace(rnd, steps=usual_steps(self.indices, t.batch_size, t.epochs, t.local_steps))
            mean = mean_of_no_replies(work.algorithm, work.down, rnd)
        else:
            mean, loss = outcome.mean, outcome.measured[0]
        if outcome is not None and outcome.rows is not None:
            samples = [len(self.indices[i]) for i in work.clients]
            replies = Replies(outcome.rows, work.clients, samples, work.plan.steps, work.weights)
        size, masks = self.setup.task.model.layout.size, self.setup.masks
        server = server_step(work.algorithm, self.server, mean, rnd, size, loss, replies, masks)
        if server is None:
            raise FedsmooError(
                f"round {work.number + 1}: the training loss or the model is no longer finite; what came before is "
                f"kept. Try a smaller lr (now {t.lr:g}), a lower clip (now {t.clip}), or, for FedDyn and FedSMOO, "
                "a larger beta"
            )
        self._take(server)

    def _evaluated(self, train_loss: float | None) -> dict[str, Any]:
        """Return what an evaluation of the global model finds, as fields of a record."""
        task, evaluate = self.setup.task, self.engine.evaluate
        lower = [m.name for m in task.metrics if m.mine and not m.quantity.higher]
        fields = evaluation_fields(evaluate(self.server.w) if task.data.has_test else None, train_loss, lower)
        return fields if task.held is None else fields | validation_fields(evaluate(self.server.w, task.held))

    def _served(self, work: RoundInputs) -> dict[str, Any]:
        """Return how clients met so far are served, by personal models and the global one, where that can be known."""
        held, part = (self.held, "train") if self.tests is None else (self.tests, "test")
        if held is None or not work.algorithm.has_personal:
            return {}
        met = sorted({*work.clients, *(i for record in self.history for i in record.cohort)})
        parts = {i: held[i] for i in met if len(held[i])}
        if not parts:
            return {}
        down = self.setup.masks.sent(work.algorithm, self.server)
        statistics = self.server.statistics if NAME in self.server.names() else None
        with torch.no_grad():
            found = self.engine.personal(PersonalInputs(work.algorithm, self.server.w, down, parts, statistics, part))
        return personal_fields(found.numpy(), self.setup.task.metrics[0].quantity)

    def _probe(self, work: RoundInputs) -> dict[str, float]:
        """Return the measurements that are due after a round."""
        from fedsmoo.analysis.probes import Moment

        assert self.probes is not None
        if self.probes.due(work.number + 1, self.training.rounds):
            self.refresh()
        now = Moment(self.setup, self.server, self.engine.table, self.indices, work)
        return self.probes.measure(now, self.training.rounds)

    def run(self, callback: Callback | None = None, stop: Callable[[], bool] = lambda: False) -> Result:
        """Carry out all rounds that are left; a callback that returns ``False``, or ``stop``, ends it after a round."""
        callback = None if callback is None else with_state(callback, self)
        while len(self.history) < self.training.rounds:
            record = self.advance()
            if (callback is not None and says_stop(callback(record))) or stop():
                break
        return Result(list(self.history), self.server, self)
