"""The engine that trains all clients of a cohort at once, as one batch of models. Several runs may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.contract.inputs import asks_more, couples
from fedsmoo.core.errors import first_line
from fedsmoo.data.batches.plan import Plan
from fedsmoo.engines.client_state.memory import clients_that_fit, keep_pages, place_of_rows, ran_out, release
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Engine, Meanwhile, RoundInputs, RoundOutcome, Setup, Sums, one_run_at_a_time
from fedsmoo.engines.looking.fitting import scale_of
from fedsmoo.engines.oracles.cpu.library import LIBRARY, Way
from fedsmoo.engines.oracles.drawing import unlike_alone
from fedsmoo.engines.oracles.fused import FusedOracle, fused_reason
from fedsmoo.engines.oracles.oracle import Oracle, hand_oracle, vmap_oracle
from fedsmoo.engines.oracles.recorded import RecordedOracle
from fedsmoo.engines.oracles.sealed import sealed
from fedsmoo.engines.oracles.traced import TracedOracle, can_trace
from fedsmoo.engines.personal import PersonalInputs, one_by_one, several_at_once
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.steps.stepper import DevicePlan, Stepper
from fedsmoo.engines.task import Samples
from fedsmoo.engines.train import RunSlice, train
from fedsmoo.metrics.tally import Scores

OWN_LOSS = "the method asks for outputs, or has a loss of its own"


def kernels_reason(setup: Setup) -> str:
    """Return why the hand-written kernels cannot serve a run; empty if they can."""
    task = setup.task
    if reason := fused_reason(task):
        return reason
    run = scale_of(task.model, task.data, task.dtype, task.device)
    return OWN_LOSS if asks_more(setup.algorithm, run) else ""


def group_by_length_if_coupled(setup: Setup) -> None:
    """Compute clients with batches of one length at once, if a loss of the method's own looks at a whole batch."""
    task = setup.task
    run = scale_of(task.model, task.data, task.dtype, task.device)
    task.model.lengths = run.classes, run.features
    if couples(setup.algorithm, run):
        task.model.padding, task.model.batched = "equal", None


def make_oracle(setup: Setup, kind: str) -> tuple[str, Oracle]:
    """Return an engine's name and oracle: kernels where they serve, else by hand where the model can, else ``vmap``.

    Raises:
        FedsmooError: if ``kind`` is ``fused`` or ``hand`` and that cannot serve the task.
    """
    task = setup.task
    if kind in ("auto", "fused") and task.device.type == "cuda" and not kernels_reason(setup):
        return "fused", FusedOracle(task)
    if kind == "fused":
        raise FedsmooError(f"the hand-written kernels cannot serve here: {kernels_reason(setup)}")
    # A hand-batched forward draws for all clients what each should draw for itself.
    by_hand = task.model.batched is not None and not task.model.random if kind == "auto" else kind == "hand"
    if by_hand:
        oracle = hand_oracle(task)
        return "batched", RecordedOracle(oracle) if task.device.type == "cpu" else oracle
    return "vmap", in_steps(vmap_oracle(task))


def in_steps(oracle: Oracle) -> Oracle:
    """Return an oracle by ``vmap`` in the form that steps take: compiled ones a graph, or sealed where it draws."""
    if oracle.task.device.type == "cpu" and oracle.task.model.padding != "equal":
        return RecordedOracle(oracle)
    return TracedOracle(oracle) if can_trace(oracle) else sealed(oracle)


def make_stepper(oracle: Oracle) -> Stepper:
    """Return the stepper of a device: on a GPU a local step is compiled, captured as a graph once, and replayed."""
    shapes_vary = oracle.task.model.padding == "equal"  # from step to step, which a graph cannot
    return ReplayStepper(oracle) if oracle.task.device.type == "cuda" and not shapes_vary else EagerStepper(oracle)


class Batched(Engine):
    """The engine for one device: C models as ``[C, P]``, C gradients from one call of the oracle.

    Args:
        setup: the run's task, method and step rule.
        table: the clients' own vectors (default: in the device's memory).
        oracle: the kind of gradient (``auto``, ``fused``, ``hand`` or ``vmap``), or an oracle.
        chunk: how many clients train at once; by default as many as fit by a rule (``memory.clients_that_fit``).
            Results are the same but for their last bits.
        batch_size: samples in a batch, for that rule.
        why: the engine was chosen.
        stepper: makes the stepper of an oracle.

    Raises:
        FedsmooError: for a model that draws random numbers in a way that clients in one batch cannot follow.
    """

    can_share = True

    def __init__(
        self,
        setup: Setup,
        table: ClientTable | None = None,
        oracle: str | Oracle = "auto",
        chunk: int | None = None,
        batch_size: int = 1,
        why: str = "",
        stepper: Callable[[Oracle], Stepper] = make_stepper,
    ) -> None:
        group_by_length_if_coupled(setup)
        if setup.task.model.random and (reason := unlike_alone(setup.task)):
            raise FedsmooError(f"{reason}: use engine=serial, or engine=auto, which takes it")
        self.setup, self.chosen = setup, why
        self.table = table or ClientTable(setup.algorithm.own)
        self.name, self.oracle = make_oracle(setup, oracle) if isinstance(oracle, str) else ("batched", oracle)
        self.chunk, self.capacity = chunk, chunk or clients_that_fit(setup, batch_size)
        self.stepper = stepper(self.oracle)
        self.alone = True  # whether a batch holds this run's clients only
        self.ready: tuple[Plan, DevicePlan] | None = None
        if oracle == "auto" and self.name != "fused" and kernels_reason(setup) == OWN_LOSS:
            self.chosen = f"{why}; PyTorch's operations, not the hand-written kernels: {OWN_LOSS}"

    @property
    def why(self) -> str:
        return "; ".join([self.chosen, *self.oracle.slower])

    @property
    def clients_at_once(self) -> int:
        return self.chunk or self.capacity

    def pin(self, clients_at_once: int | None = None, why: str | None = None) -> None:
        super().pin(why=why)
        self.chunk = self.chunk or clients_at_once

    def share(self, others: Sequence[Engine]) -> SharedRounds:
        members = [self]
        for other in others:
            self.alone = False
            if not isinstance(other, Batched):
                raise one_run_at_a_time(other)
            other.oracle, other.stepper, other.name = self.oracle, self.stepper, self.name  # one set of buffers
            other.alone = False
            members.append(other)
        return SharedRounds(members)

    def ahead(self, clients: list[int], plan: Plan) -> None:
        super().ahead(clients, plan)
        if self.alone and len(clients) <= self.clients_at_once:
            self.ready = plan, DevicePlan(plan, self.setup.task)
            self.stepper.ahead(self.ready[1])

    def plan_of(self, inputs: RoundInputs) -> DevicePlan | None:
        """Return the plan of all clients of a round on the device, if it was made ahead."""
        ready, self.ready = self.ready, None
        return ready[1] if ready is not None and ready[0] is inputs.plan else None

    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        with self._own_statistics(), LIBRARY.taken(Way()):
            return self.oracle.evaluate(w, on)

    def _own_statistics(self) -> AbstractContextManager[None]:
        """Evaluate with the statistics of this run: the model may be another one's, whose oracle this engine shares."""
        return self.oracle.task.model.holding(self.setup.task.model)

    def personal(self, inputs: PersonalInputs) -> Tensor:
        if self.oracle.task.model.random_in_evaluation:  # every evaluation draws the same numbers
            return one_by_one(self.setup.task, self.evaluate, self.table, inputs)
        with self._own_statistics(), LIBRARY.taken(Way()):
            return several_at_once(self.oracle.task, self.table, inputs, self.clients_at_once)

    def run_round(self, inputs: RoundInputs, meanwhile: Meanwhile | None = None) -> RoundOutcome:
        chunk = min(self.clients_at_once, len(inputs.clients))
        keep_pages(self.setup.task.device)
        try:
            with LIBRARY.taken(Way()):
                sums, done = self._train(inputs, chunk, meanwhile)
        except Exception as e:
            if not ran_out(e):
                raise
            raise no_room(self.setup, chunk, e) from e
        for clients, me in done:
            keep(self.table, clients, me)
        if meanwhile is not None and len(done) > 1:  # only now is it known which rows are on their way back
            meanwhile()
        return sums.outcome()

    def _train(
        self, inputs: RoundInputs, chunk: int, meanwhile: Meanwhile | None
    ) -> tuple[Sums, list[tuple[list[int], Vectors]]]:
        """Train ``chunk`` clients at a time; return the round's sums, and rows that are not yet written."""
        self.oracle.task.model.train()  # which may be another run's, whose oracle this engine shares
        n, done = len(inputs.clients), []
        sums, whole = Sums(n, place=place_of_rows(self.setup, n)), chunk >= n
        for start in range(0, len(inputs.clients), chunk):
            run = RunSlice(self.setup, self.table, inputs, slice(start, start + chunk))
            plan = self.plan_of(inputs) if whole else None
            (result,) = train([run], self.stepper, meanwhile if whole else None, plan)
            sums.add(result.sent)
            # Captured steps answer with views of buffers that the next chunk overwrites.
            done.append((run.clients, result.me if whole else result.me.map(torch.clone)))
        return sums, done


def no_room(setup: Setup, chunk: int, why: Exception) -> FedsmooError:
    """Return the error of memory that ran out: it names the ``chunk`` to set.

    A smaller chunk is not tried here, because the number of clients at once decides the last bits.
    """
    place = f"the memory of {setup.task.device}"
    if chunk == 1:
        advice = "use a smaller batch_size or model, or a device with more memory"
        return FedsmooError(f"not even one client fits in {place}: {advice} ({first_line(why)})")
    advice = f"set chunk={(chunk + 1) // 2}, which trains fewer at once, or end what else uses it"
    return FedsmooError(f"{chunk} clients at once do not fit in {place}: {advice} ({first_line(why)})")


def keep(table: ClientTable, clients: list[int], me: Vectors) -> None:
    """Write rows; if memory runs out, free what can be freed and retry: writing is idempotent."""
    try:
        table.write(clients, me)
    except torch.OutOfMemoryError:
        release()
        table.write(clients, me)


class SharedRounds:
    """Rounds of several runs, each in one batch of all their clients; all engines share one oracle and one stepper."""

    def __init__(self, engines: Sequence[Batched]) -> None:
        self.engines = list(engines)

    def run_round(self, inputs: Mapping[int, RoundInputs], meanwhile: Meanwhile | None = None) -> list[RoundOutcome]:
        """Run one round of some of the runs.

        Raises:
            FedsmooError: if their clients do not fit in memory at once.
        """
        first, clients = self.engines[0], sum(len(i.clients) for i in inputs.values())
        capacity = self.engines[next(iter(inputs))].capacity
        if capacity < clients:
            raise FedsmooError(
                f"{len(inputs)} runs of {clients} clients in all do not fit in the memory of {first.setup.task.device} "
                f"at once ({capacity} clients do): put fewer runs in a batch"
            )
        first.oracle.task.model.train()
        members = [self.engines[i] for i in inputs]
        everyone = [
            RunSlice(e.setup, e.table, i, slice(0, len(i.clients)))
            for e, i in zip(members, inputs.values(), strict=True)
        ]
        with LIBRARY.taken(Way()):
            plan = members[0].plan_of(*inputs.values()) if first.alone else None
            results = train(everyone, first.stepper, meanwhile, plan)
        outcomes = []
        for run, result in zip(everyone, results, strict=True):
            keep(run.table, run.clients, result.me)
            sums = Sums(len(run.clients), place=place_of_rows(run.setup, clients))
            sums.add(result.sent)
            outcomes.append(sums.outcome())
        return outcomes
