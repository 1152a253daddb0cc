"""Threads: how many there are is fixed, and clients may train in several of them at the same time."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.gradient import Loss
from fedsmoo.core.random.noise import Noise
from fedsmoo.engines.client_state.memory import clients_that_fit, keep_pages
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Meanwhile, RoundInputs, RoundOutcome, Setup
from fedsmoo.engines.oracles.library import LIBRARY, best_way
from fedsmoo.engines.oracles.oracle import Oracle, single_oracle
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.serial import Reply, Serial, reply, train_client_of
from fedsmoo.engines.task import Batch, Samples, Task
from fedsmoo.metrics.tally import Scores
from fedsmoo.models.draws import as_it_was, outside_kernels
from fedsmoo.models.hidden import largest
from fedsmoo.models.modules.copies import copied

OFF = ("", "false", "0", "no")
LAST = torch.channels_last
POOLED = torch.ops.aten.max_pool2d_with_indices_backward.default
ATEN = torch.library.Library("aten", "IMPL")  # whose rules last as long as it does
HERE = torch._C.DispatchKey.BackendSelect  # below autograd, and in every call of an operator


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
        self.machine_s = torch.get_num_threads()
        self.threads = threads or min(self.machine_s, clients_that_fit(setup, batch_size))
        self.pool = ThreadPoolExecutor(self.threads)
        self.oracle_of = LastOracle if takes_channels_last(setup.task) else single_oracle
        self.oracle = self.oracle_of(setup.task)  # which evaluates
        self.idle: SimpleQueue[tuple[Setup, Oracle]] = SimpleQueue()  # a model for each thread, which a pass changes
        self.made = 0

    @property
    def why(self) -> str:
        return f"{self.chosen}; products in float32 by oneDNN" if self.way.onednn else self.chosen

    def run_round(self, inputs: RoundInputs, meanwhile: Meanwhile | None = None) -> RoundOutcome:
        sums, running, model = self.sums(inputs), deque[Future[tuple[Vectors, Reply]]](), self.setup.task.model
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
                        me, replied = running.popleft().result()
                        self.keep(inputs, c - self.threads, me)
                        torch.set_num_threads(1)  # or this thread's own helpers would wait for cores that clients have
                        sums.add(*replied)
            finally:
                for left in [f for f in running if not f.cancel()]:  # after an error: nothing goes on behind its back
                    left.exception()
                torch.set_num_threads(self.machine_s)
        return sums.outcome()

    def _train(self, inputs: RoundInputs, c: int, own: Vectors) -> tuple[Vectors, Reply]:
        torch.set_num_threads(1)  # of this thread
        setup, oracle = self.idle.get()
        try:
            trained = train_client_of(setup, inputs, c, own, oracle)
            return trained[1], reply(inputs, c, trained, self.machine_s)
        finally:
            self.idle.put((setup, oracle))


def twin(task: Task) -> Task:
    """Return the same task with a model of its own."""
    model = copied(task.model.module, task.model)
    model.keep(task.model.constants)  # which are known to be constant by never having been written to
    return replace(task, model=model)


def takes_channels_last(task: Task) -> bool:
    """Whether a model has convolutions over images, and the same gradient and outputs where channels are last.

    Code that looks at memory, such as ``x.view(len(x), -1)``, fails there.
    """
    if not any(isinstance(m, nn.Conv2d) for m in task.model.module.modules()) or len(task.data.x_train) < 2:
        return False
    weight = torch.full((2,), 0.5, dtype=task.dtype, device=task.device)
    batch = task.batch(torch.arange(2, device=task.device), weight)
    if batch.x.dim() != 4:
        return False
    task = replace(task, precision="fp32")  # whose gradients can be compared
    batch, w = replace(batch, noise=Noise((0, 0)) if task.model.random else None), task.model.initial().to(weight)

    def answers(order: torch.memory_format) -> Tensor:
        return task.model.forward(task.model.layout.split(w), batch.x.contiguous(memory_format=order)).detach()

    try:
        task.model.train()
        gradients = [oracle(task)(w, batch)[0] for oracle in (single_oracle, LastOracle)]
        task.model.eval()
        outputs = [answers(order) for order in (torch.contiguous_format, LAST)]
    except Exception:  # the user's own code: the first round says what is wrong, if anything is
        return False
    return all(torch.allclose(a, b, rtol=1e-2, atol=1e-3 * largest(a)) for a, b in (gradients, outputs))


class LastOracle(Oracle):
    """The oracle of one client whose images have their channels last in memory."""

    def __init__(self, task: Task) -> None:
        inner = single_oracle(task)
        lay_out_gradients()

        def laid(batch: Batch) -> Batch:
            return replace(batch, x=batch.x.contiguous(memory_format=LAST))

        def own(w: Tensor, batch: Batch, loss: Loss, given: Any, pair: bool) -> tuple[Tensor, Tensor]:
            return inner.own(w, laid(batch), loss, given, pair)

        def look(w: Tensor, batch: Batch, pair: bool) -> Any:
            return inner.look(w, laid(batch), pair)

        super().__init__(task, lambda w, batch: inner.function(w, laid(batch)), own, look)

    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        with products(self.task):
            return self.task.evaluate(w, on, LAST)


@cache
def lay_out_gradients() -> None:
    """Give max-pooling on a CPU gradients in the order of its images, from now on: the same numbers, to the bit.

    A network that flattens pooled images hands back gradients with their channels first. For these PyTorch's own way
    takes five times as long as with a copy in the other order.
    """
    below = torch._C._dispatch_keyset_full_after(HERE)

    def pooled(keys: Any, gradient: Tensor, x: Tensor, *given: Any) -> Tensor:
        if x.dim() == 4 and x.device.type == "cpu" and x.is_contiguous(memory_format=LAST):
            gradient = gradient.contiguous(memory_format=LAST)
        found: Tensor = POOLED.redispatch(keys & below, gradient, x, *given)
        return found

    ATEN.impl("max_pool2d_with_indices_backward", pooled, "BackendSelect", with_keyset=True)
