"""A group of clients that step together: static buffers, and one local step on them, compiled and captured.

Everything a step reads or writes lies in buffers that never move: weights, client vectors, what was sent, the plan, the
batch, the learning rate and the step counter. Around hand-written kernels the method's arithmetic becomes generated
passes (``fedsmoo.compiler``); a method that passes cannot express, or a model that ``torch.compile`` can look into, is
compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.trace import StepInputs
from fedsmoo.engines.client_state.memory import ran_out
from fedsmoo.engines.oracles.on_batch import OnBatch
from fedsmoo.engines.oracles.oracle import InStep, Oracle
from fedsmoo.engines.steps.buffers import fill_round, round_buffers
from fedsmoo.engines.steps.capture import captured, warn_slower
from fedsmoo.engines.steps.eager import one_step
from fedsmoo.engines.steps.moving import fill_numbers, number_buffers
from fedsmoo.engines.steps.rows import Rows
from fedsmoo.engines.steps.stack import of_clients
from fedsmoo.engines.steps.staging import Ring
from fedsmoo.engines.steps.stepper import Assignment, DevicePlan
from fedsmoo.engines.task import Batch
from fedsmoo.kernels import available
from fedsmoo.kernels.streams import SideStream

if TYPE_CHECKING:
    from fedsmoo.compiler.step import CompiledStep, GradientKernels

# A method's arithmetic is cheap beside the bytes of a vector: compute twice rather than store between. And no stopwatch
# may choose the order in which a sum is added: the same command gives the same bits.
OPTIONS: dict[str, Any] = {"realize_reads_threshold": 32, "realize_opcount_threshold": 256, "deterministic": True}


class Feed(NamedTuple):
    """The buffers that one step reads: a batch, which clients are still running (``None``: all), and its number."""

    batch: Batch
    active: Tensor | None
    step: Tensor


class Ways(NamedTuple):
    """In which ways steps may be made faster."""

    compile: bool  # what is not a generated pass, by ``torch.compile``
    capture: bool  # as CUDA graphs
    passes: bool  # around hand-written kernels, generated


class ClientGroup:
    """Clients that step together on a CUDA stream of their own: ``part`` of the rows, and a copy of their plan.

    ``steps`` is the longest round there is room for. The plan's buffers are no views: compilers require that memory
    begins at aligned addresses.
    """

    def __init__(
        self, oracle: Oracle, given: Assignment, rows: Rows, part: slice, plan: DevicePlan, steps: int, masked: bool
    ) -> None:
        self.oracle, self.part, self.rows = oracle, part, rows.of(part)
        self.in_step: InStep = oracle.in_step
        clients, width, w = len(self.rows.w), plan.index.shape[2], rows.w

        def over_steps(t: Tensor) -> Tensor:
            return t.new_zeros(steps + 1, clients, width)  # a batch is loaded ahead, after the last step as well

        self.index, self.weight = over_steps(plan.index), over_steps(plan.weight)
        self.draws = None if plan.draws is None else {n: over_steps(d) for n, d in plan.draws.items()}
        self.running = torch.zeros(steps + 1, clients, 1, dtype=torch.bool, device=w.device) if masked else None
        self.held: DevicePlan | None = None  # whose part lies in these buffers
        self.places = torch.arange(steps + 1, dtype=w.dtype, device=w.device)
        self.total = w.new_zeros(clients)
        self.k = torch.zeros(1, dtype=torch.int64, device=w.device)
        self.ring = Ring(oracle.task, clients, width) if oracle.task.staged else None
        self.feeds = self._picked(), self._picked()
        algorithm, rule = given.algorithm, given.rule
        if len(given.runs) > 1:  # whose numbers may differ
            algorithm, rule = of_clients(algorithm, part), of_clients(rule, part)
        algorithm = number_buffers(algorithm, given.moving, clients, w)
        self.given = Assignment(algorithm, rule, self.rows.down, round_buffers(given.rnd, clients, w), given.runs)
        self.read: frozenset[str] | None = None  # what steps read of the round; None: not known, so anything
        self.stream = torch.cuda.Stream(w.device) if w.device.type == "cuda" else None
        self.loader = SideStream(w.device, apart=True)
        self.passes: CompiledStep | None = None
        self.working = self.rows.w  # or a copy of it in the oracle's type, kept equal
        self.capture = self.compiles = False
        self.segments: dict[tuple[int, bool], Callable[[], None]] = {}  # by steps, and whether they end a round

    def hold(self, plan: DevicePlan) -> None:
        """Copy this group's part of a plan, if it is not here yet; rows beyond its clients never become active."""
        if self.held is plan:
            return
        steps, clients = plan.index[:, self.part].shape[:2]
        pairs = [(self.index, plan.index), (self.weight, plan.weight)]
        pairs += [] if self.draws is None or plan.draws is None else [(self.draws[n], d) for n, d in plan.draws.items()]
        for buffer, source in pairs:
            buffer[:steps, :clients].copy_(source[:, self.part])
        if self.running is not None:
            self.running.zero_()
            self.running[:steps, :clients] = True if plan.running is None else plan.running[:, self.part]
        self.held = plan

    def fill(self, given: Assignment, plan: DevicePlan) -> None:
        """Copy this group's part of a round's plan and numbers."""
        self.hold(plan)
        if self.ring is not None:
            self.ring.begin(plan.numbers[:, self.part])
        fill_round(self.given.rnd, given.rnd, self.part, self.read)
        fill_numbers(self.given.algorithm, given.algorithm, given.moving, self.part)
        self.total.zero_()
        self.k.zero_()

    def _picked(self) -> Feed:
        """Return the batch of step ``k``, which clients are still running, and its number."""

        def at_k(t: Tensor) -> Tensor:
            return t.index_select(0, self.k)[0]

        draws = None if self.draws is None else {n: at_k(d) for n, d in self.draws.items()}
        found = None if self.ring is None else self.ring.at(self.k)
        batch = self.oracle.batch(at_k(self.index), at_k(self.weight), draws, found)
        return Feed(batch, None if self.running is None else at_k(self.running), self.places.index_select(0, self.k))

    def load(self, feed: Feed) -> None:
        """Copy the batch of step ``k`` into its buffers, once for all gradients of the step, and count ``k`` up."""
        batch, active, step = self._picked()
        feed.batch.x.copy_(batch.x)
        feed.batch.y.copy_(batch.y)
        feed.batch.weight.copy_(batch.weight)
        if feed.batch.real is not None and batch.real is not None:
            feed.batch.real.copy_(batch.real)
        if feed.active is not None and active is not None:
            feed.active.copy_(active)
        if self.read is not None and "step" in self.read:  # the whole step reads the counter itself
            feed.step.copy_(step)
        self.k.add_(1)

    def body(self) -> None:
        """Take one local step on the buffers, by PyTorch's operations."""
        b = self.rows

        def gradient(v: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            return self.in_step(v, batch, self.working if v is b.w else None)

        batch, active, _ = self.feeds[0]
        step = self.places.index_select(0, self.k - 1)  # a batch is loaded before its step
        model = OnBatch(self.oracle, batch, self.given.algorithm.features, compiled=True)
        w, me, loss = one_step(self.given, gradient, b.w, b.me, model, active, step)
        b.w.copy_(w)
        if self.working is not b.w:
            self.working.copy_(w)
        for name, v in me.items():
            getattr(b.me, name).copy_(v)
        self.total.add_(loss)

    def fork(self) -> None:
        """Make the group's stream wait for all that is queued so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def join(self) -> None:
        """Make all that is queued from now on wait for the group's stream."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def prepare(self, ways: Ways) -> None:
        """Make the step: by generated passes where asked for and possible, else whole, compiled if asked for."""
        self.capture = ways.capture and self.stream is not None
        kernels = self.kernels() if ways.passes else None
        self.passes = None if kernels is None else self._passes(kernels)
        self.read = None if self.passes is None else self.passes.read
        if self.passes is None:
            self.working = self.oracle.working(self.rows.w)
            self.in_step = self.oracle.ready(self.rows.w, self.feeds[0].batch)
        options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "options": OPTIONS}
        alone = self.passes is not None and self.passes.kernels.whole
        self.compiles = ways.compile and not alone
        self.loads = torch.compile(self.load, **options) if self.compiles else self.load
        self.whole = torch.compile(self.body, **options) if self.compiles and self.passes is None else self.body

    def kernels(self) -> GradientKernels | None:
        """Return what generated passes call, where they can run."""
        w = self.rows.w
        return self.oracle.kernels_for(w, self.feeds[0].batch) if available(w.device)[0] else None

    def _passes(self, kernels: GradientKernels) -> CompiledStep | None:
        """Compile the step into passes; ``None`` for a method that passes cannot express."""
        from fedsmoo.compiler.step import CompiledStep  # needs Triton

        b = self.rows
        rnd = self.given.rnd.at_step(self.feeds[0].step)
        inputs = StepInputs(b.w, b.me, b.down, rnd, self.feeds[0].active)
        method = self.given.algorithm, self.given.rule
        try:
            return CompiledStep(kernels, *method, inputs, b.spare, self.feeds, self.total)
        except NotCompiled:
            return None
        except Exception as e:  # the method cannot be traced
            if ran_out(e):
                raise
            warn_slower("the local step cannot be cut into passes", e, self.oracle.slower)
            return None

    def round(self, steps: int, fill: Callable[[], None]) -> list[Callable[[], None]]:
        """Return what to call, one after the other, for a round of so many steps: captured graphs where possible.

        Steps come two at a time, so that models that alternate between two buffers are back in the first one.
        ``fill`` gives a segment that is captured now something to work on.
        """
        twos, odd = divmod(steps, 2)
        sizes = [2] * twos + [1] * odd
        marked = self.passes is not None and self.passes.marked_end
        segments = [(size, marked and i + 1 == len(sizes)) for i, size in enumerate(sizes)]
        if self.passes is not None or self.working is not self.rows.w:
            segments.insert(0, (0, False))
        calls = [self._segment(size, end, fill) for size, end in segments]
        return calls if self.ring is None else self._staged(self.ring, calls, [size for size, _ in segments])

    def _staged(self, ring: Ring, calls: list[Callable[[], None]], sizes: list[int]) -> list[Callable[[], None]]:
        """Return calls of so many steps each, that find the batches they load in the ring."""

        def staged(call: Callable[[], None], read: int, upto: int) -> None:
            ring.need(read, upto)
            call()
            ring.ahead()

        first = int(self.passes is not None)  # which load a batch ahead of its step, the first one before all steps
        loads = [size or first for size in sizes]
        ends = list(accumulate(loads, initial=0))
        return [partial(staged, *row) for row in zip(calls, ends, ends[1:], strict=False)]

    def _segment(self, steps: int, end: bool, fill: Callable[[], None]) -> Callable[[], None]:
        """Return so many steps, the last ones of a round or not, as one call; no step: what comes before the first."""

        def run() -> None:
            for i in range(steps):
                self._step(odd=i % 2 == 1, last=end and i + 1 == steps)

        key, run = (steps, end), run if steps else self._enter
        if key not in self.segments:
            stream = self.stream if self.capture else None
            self.segments[key] = run if stream is None else captured(run, stream, fill)
        return self.segments[key]

    def _enter(self) -> None:
        """Do what comes before a round's first step."""
        if self.passes is not None:
            self.loads(self.feeds[0])
            self.passes.enter()
        else:
            self.working.copy_(self.rows.w)

    def _step(self, odd: bool, last: bool) -> None:
        with self.oracle.serving():
            if self.passes is None:
                self.loads(self.feeds[0])
                self.whole()
            else:
                with self.loader.beside():
                    self.loads(self.feeds[not odd])
                self.passes.step(odd, last)
                self.loader.join()

    def ends_in_spare(self, steps: int) -> bool:
        """Return whether the models lie in the spare buffer after so many steps."""
        return self.passes is not None and self.passes.spare is not self.rows.w and steps % 2 == 1
