"""Threads: how many there are is fixed, and clients may train in several of them at the same time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state.memory import clients_that_fit, keep_pages
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Contribution, Meanwhile, RoundInputs, RoundOutcome, Setup
from fedsmoo.engines.oracles.cpu.channels_last import ChannelsLastOracle, takes_channels_last
from fedsmoo.engines.oracles.cpu.library import LIBRARY, best_way
from fedsmoo.engines.oracles.oracle import Oracle, single_oracle
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.serial import Serial, contribution, train_client_of
from fedsmoo.engines.task import Samples, Task
from fedsmoo.metrics.tally import Scores
from fedsmoo.models.draws import as_it_was, outside_kernels
from fedsmoo.models.modules.copies import copied

OFF = ("", "false", "0", "no")
T = TypeVar("T")
Job = Callable[[Setup, Oracle], T]  # of one thread, which has a model of its own


def fix_threads(number: int | None = None) -> None:
    """Use this number of threads, or the present one, from now on, whatever else the machine is doing.

    By default MKL may take fewer threads than allowed; setting a number ends that. OpenMP follows the machine's load
    only where OMP_DYNAMIC asks for it, which cannot be undone here.

    Raises:
        FedsmooError: if OMP_DYNAMIC is set.
    """
    if os.environ.get("OMP_DYNAMIC", "").strip().lower() not in OFF:
        raise FedsmooError(
            f"OMP_DYNAMIC={os.environ['OMP_DYNAMIC']} lets the number of threads follow the machine's load, so that a "
            "run would not give the same numbers twice: unset it"
        )
    torch.set_num_threads(number or torch.get_num_threads())


class Threads(Serial):
    """Clients on a CPU, each in one thread, several at the same time; what they send is added in the cohort's order.

    Two threads that share the work of a small operation wait for each other; two clients do not. The number of threads
    changes no bit. Images are laid out with their channels last where the model takes them so: convolutions and pooling
    are faster there.

    Raises:
        FedsmooError: on another device than a CPU.
    """

    name = "threads"

    def __init__(
        self, setup: Setup, table: ClientTable | None = None, why: str = "", batch_size: int = 1, threads: int = 0
    ) -> None:
        if setup.task.device.type != "cpu":
            raise FedsmooError(f"engine=threads is for a CPU, not for {setup.task.device}: use engine=auto")
        super().__init__(setup, table, why)
        self.way = best_way(setup.task, batch_size)
        self.usual_threads = torch.get_num_threads()
        self.threads = threads or min(self.usual_threads, clients_that_fit(setup, batch_size))
        self.pool = ThreadPoolExecutor(self.threads)
        self.oracle_of = ChannelsLastOracle if takes_channels_last(setup.task) else single_oracle
        self.oracle = self.oracle_of(setup.task)  # which evaluates what is one portion
        self.twins: list[tuple[Setup, Oracle]] = []  # a model for each thread, which a pass changes
        self.idle: SimpleQueue[tuple[Setup, Oracle]] = SimpleQueue()

    @property
    def why(self) -> str:
        return f"{self.chosen}; products in float32 by oneDNN" if self.way.onednn else self.chosen

    def run_round(self, inputs: RoundInputs, meanwhile: Meanwhile | None = None) -> RoundOutcome:
        sums, model = self.sums(inputs), self.setup.task.model
        keep_pages(self.setup.task.device)
        with (
            LIBRARY.taken(self.way),
            outside_kernels(model.module) if model.random else nullcontext(),
            closing(self._in_order(self._clients(inputs), len(inputs.clients), meanwhile)) as trained,
        ):
            for c, (me, part) in enumerate(trained):
                self.keep(inputs, c, me)
                sums.add(part)
        return sums.outcome()

    def _clients(self, inputs: RoundInputs) -> Iterator[Job[tuple[Vectors, Contribution]]]:
        """Yield for each client of a cohort what trains it; its vectors are read now."""

        def train(c: int, own: Vectors, setup: Setup, oracle: Oracle) -> tuple[Vectors, Contribution]:
            trained = train_client_of(setup, inputs, c, own, oracle)
            return trained.me, contribution(inputs, c, trained, self.usual_threads)

        for c in range(len(inputs.clients)):
            yield partial(train, c, self.own(inputs, c))

    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        """Return loss and metrics of one model; several portions of the samples at the same time, if there are some.

        Threads that share an operation would wait for each other many times in a pass.
        """
        task = self.setup.task
        on, size = on or task.test, task.portion
        if len(on.y) <= size or self.threads == 1 or task.model.random_in_evaluation:  # draws come in one order
            return super().evaluate(w, on)

        def answer(x: Tensor, setup: Setup, oracle: Oracle) -> Tensor:
            with setup.task.model.holding(task.model), products(task):
                return oracle.answers(w, x)

        portions = on.x.split(size)
        jobs = (partial(answer, x) for x in portions)
        keep_pages(task.device)
        with LIBRARY.taken(self.way), closing(self._in_order(jobs, len(portions))) as answers, products(task):
            return task.tally(answers, size, on).scores(on.y)

    def _in_order(
        self, jobs: Iterable[Job[T]], count: int, meanwhile: Meanwhile | None = None
    ) -> Generator[T, None, None]:
        """Carry out so many jobs, several at the same time, and yield what they return in their order."""
        running, once = deque[Future[T]](), [] if meanwhile is None else [meanwhile]
        while len(self.twins) < min(self.threads, count):
            task = twin(self.setup.task)
            self.twins.append((replace(self.setup, task=task), self.oracle_of(task)))
            self.idle.put(self.twins[-1])
        with as_it_was():
            try:
                for job in jobs:
                    running.append(self.pool.submit(self._carry_out, job))
                    if once and len(running) == self.threads:
                        once.pop()()
                    if len(running) > self.threads:
                        yield self._result(running)
                if once:
                    once.pop()()
                while running:
                    yield self._result(running)
            finally:
                for left in [f for f in running if not f.cancel()]:  # after an error: nothing goes on behind its back
                    left.exception()
                torch.set_num_threads(self.usual_threads)

    def _result(self, running: deque[Future[T]]) -> T:
        """Return what the first of the jobs returns; what is made of it is computed by this thread alone."""
        found = running.popleft().result()
        torch.set_num_threads(1)  # or this thread's own helpers would wait for cores that jobs have
        return found

    def _carry_out(self, job: Job[T]) -> T:
        torch.set_num_threads(1)  # of this thread
        mine = self.idle.get()
        try:
            return job(*mine)
        finally:
            self.idle.put(mine)


def twin(task: Task) -> Task:
    """Return the same task with a model of its own."""
    model = copied(task.model.module, task.model)
    model.keep(task.model.constants)  # which are known to be constant by never having been written to
    return replace(task, model=model)
