"""Threads: how many there are is fixed, and clients may train in several of them at the same time."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from queue import SimpleQueue

import torch

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state.memory import clients_that_fit, keep_pages
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Contribution, Meanwhile, RoundInputs, RoundOutcome, Setup
from fedsmoo.engines.oracles.channels_last import ChannelsLastOracle, takes_channels_last
from fedsmoo.engines.oracles.library import LIBRARY, best_way
from fedsmoo.engines.oracles.oracle import Oracle, single_oracle
from fedsmoo.engines.serial import Serial, contribution, train_client_of
from fedsmoo.engines.task import Task
from fedsmoo.models.draws import as_it_was, outside_kernels
from fedsmoo.models.modules.copies import copied

OFF = ("", "false", "0", "no")


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
        self.oracle = self.oracle_of(setup.task)  # which evaluates
        self.idle: SimpleQueue[tuple[Setup, Oracle]] = SimpleQueue()  # a model for each thread, which a pass changes
        self.made = 0

    @property
    def why(self) -> str:
        return f"{self.chosen}; products in float32 by oneDNN" if self.way.onednn else self.chosen

    def run_round(self, inputs: RoundInputs, meanwhile: Meanwhile | None = None) -> RoundOutcome:
        sums, running, model = self.sums(inputs), deque[Future[tuple[Vectors, Contribution]]](), self.setup.task.model
        keep_pages(self.setup.task.device)
        while self.made < min(self.threads, len(inputs.clients)):
            task, self.made = twin(self.setup.task), self.made + 1
            self.idle.put((replace(self.setup, task=task), self.oracle_of(task)))
        with LIBRARY.taken(self.way), outside_kernels(model.module) if model.random else nullcontext(), as_it_was():
            try:
                for c in range(len(inputs.clients) + self.threads):
                    if c < len(inputs.clients):
                        running.append(self.pool.submit(self._train, inputs, c, self.own(inputs, c)))
                    if c == self.threads - 1 and meanwhile is not None:
                        meanwhile()
                    if c >= self.threads and running:
                        me, part = running.popleft().result()
                        self.keep(inputs, c - self.threads, me)
                        torch.set_num_threads(1)  # or this thread's own helpers would wait for cores that clients have
                        sums.add(part)
            finally:
                for left in [f for f in running if not f.cancel()]:  # after an error: nothing goes on behind its back
                    left.exception()
                torch.set_num_threads(self.usual_threads)
        return sums.outcome()

    def _train(self, inputs: RoundInputs, c: int, own: Vectors) -> tuple[Vectors, Contribution]:
        torch.set_num_threads(1)  # of this thread
        setup, oracle = self.idle.get()
        try:
            trained = train_client_of(setup, inputs, c, own, oracle)
            return trained.me, contribution(inputs, c, trained, self.usual_threads)
        finally:
            self.idle.put((setup, oracle))


def twin(task: Task) -> Task:
    """Return the same task with a model of its own."""
    model = copied(task.model.module, task.model)
    model.keep(task.model.constants)  # which are known to be constant by never having been written to
    return replace(task, model=model)
