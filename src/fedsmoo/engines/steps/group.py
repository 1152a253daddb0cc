"""Clients that step together: their buffers, which never move, and one local step of theirs, compiled and captured.

Everything a step reads or writes lies in buffers: weights, client vectors, what was sent, the plan, the batch, the
learning rate and the step counter. Around hand-written kernels the method's arithmetic becomes generated passes; a
method beyond those, or a model that a compiler can look into, is compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.trace import StepInputs
from fedsmoo.core import Vectors
from fedsmoo.engines.client_state.memory import ran_out
from fedsmoo.engines.oracles import OpaqueOracle, Oracle
from fedsmoo.engines.steps.capture import captured, say_slower
from fedsmoo.engines.steps.eager import DevicePlan, Feed, Stage, one_step
from fedsmoo.engines.steps.stack import of_clients
from fedsmoo.engines.task import Batch
from fedsmoo.kernels import available
from fedsmoo.kernels.streams import SideStream

if TYPE_CHECKING:
    from fedsmoo.compiler.step import CompiledStep

# A method's arithmetic is cheap beside the bytes of a vector: compute twice rather than store between.
INLINE: dict[str, Any] = {"realize_reads_threshold": 32, "realize_opcount_threshold": 256}

_serving: ContextVar[OpaqueOracle | None] = ContextVar("serving")  # whose gradients the step at hand takes


@torch.library.custom_op("fedsmoo::gradient", mutates_args=())
def _gradient(working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    oracle = _serving.get()
    assert oracle is not None
    return oracle.taken(working, fine, Batch(x, y, weight))


@_gradient.register_fake
def _(working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return fine.new_empty(working.shape), fine.new_empty(len(working))


@dataclass(frozen=True)
class Rows:
    """Vectors of C clients that steps read and write; steps may put every other model into ``spare``."""

    w: Tensor
    spare: Tensor | None
    me: Vectors
    down: Vectors

    @classmethod
    def make(cls, stage: Stage, me: Vectors, room: int, alternate: bool) -> Rows:
        size, new = stage.down.w.shape[-1], stage.down.w.new_zeros
        w = new(room, size)
        return cls(
            w,
            new(room, size) if alternate else None,
            me.map(lambda v: new(room, size)),
            stage.down.map(lambda v: new(v.shape) if v.dim() == 1 else new(room, size)),
        )

    def of(self, part: slice) -> Rows:
        """The same memory, of some clients."""
        return Rows(
            self.w[part],
            None if self.spare is None else self.spare[part],
            self.me.map(lambda v: v[part]),
            self.down.map(lambda v: v if v.dim() == 1 else v[part]),
        )

    def fill(self, stage: Stage, w: Tensor, me: Vectors) -> None:
        """Copy a round's inputs."""
        clients = len(w)
        self.w[:clients].copy_(w)
        for name, v in me.items():
            getattr(self.me, name)[:clients].copy_(v)
        for name, v in stage.down.items():
            getattr(self.down, name)[: len(v)].copy_(v)


class Group:
    """Clients that step together on a stream of their own: rows of the vectors, and a plan in memory of its own.

    ``steps`` is how long a round may be. Small buffers are not views: compilers ask that memory begins at full words.
    """

    def __init__(
        self, oracle: Oracle, stage: Stage, rows: Rows, part: slice, plan: DevicePlan, steps: int, masked: bool
    ) -> None:
        self.oracle, self.part, self.rows = oracle, part, rows.of(part)
        self.opaque = oracle if isinstance(oracle, OpaqueOracle) else None
        room, width, w = len(self.rows.w), plan.index.shape[2], rows.w

        def over_steps(t: Tensor) -> Tensor:
            return t.new_zeros(steps + 1, room, width)  # a batch is loaded ahead, after the last step as well

        self.index, self.weight = over_steps(plan.index), over_steps(plan.weight)
        self.draws = None if plan.draws is None else {n: over_steps(d) for n, d in plan.draws.items()}
        self.running = torch.zeros(steps + 1, room, 1, dtype=torch.bool, device=w.device) if masked else None
        self.lr = w.new_zeros(room, 1) if isinstance(stage.lr, Tensor) else w.new_zeros(())
        self.total = w.new_zeros(room)
        self.k = torch.zeros(1, dtype=torch.int64, device=w.device)
        self.feeds = self._picked(), self._picked()
        algorithm, rule = stage.algorithm, stage.rule
        if len(stage.tag) > 1:  # of several runs, whose numbers may differ
            algorithm, rule = of_clients(algorithm, part), of_clients(rule, part)
        self.stage = Stage(algorithm, rule, self.rows.down, self.lr, stage.tag)
        self.stream = torch.cuda.Stream(w.device) if w.device.type == "cuda" else None
        self.loader = SideStream(w.device, apart=True)
        self.passes: CompiledStep | None = None
        self.working = self.rows.w  # kept equal to it, in the oracle's type
        self.capture = False
        self.units: dict[tuple[int, bool], Callable[[], None]] = {}  # by steps, and whether they end a round

    def fill(self, stage: Stage, plan: DevicePlan) -> None:
        """Copy this group's part of a round's plan; rows beyond its clients never become active."""
        steps, clients = plan.index[:, self.part].shape[:2]
        pairs = [(self.index, plan.index), (self.weight, plan.weight)]
        pairs += [] if self.draws is None or plan.draws is None else [(self.draws[n], d) for n, d in plan.draws.items()]
        for buffer, source in pairs:
            buffer[:steps, :clients].copy_(source[:, self.part])
        if self.running is not None:
            self.running.zero_()
            self.running[:steps, :clients] = True if plan.running is None else plan.running[:, self.part]
        if isinstance(stage.lr, Tensor):
            self.lr[:clients].copy_(stage.lr[self.part])
        else:
            self.lr.fill_(stage.lr)
        self.total.zero_()
        self.k.zero_()

    def _picked(self) -> Feed:
        """The batch of step ``k``, and which clients are still running."""

        def at_k(t: Tensor) -> Tensor:
            return t.index_select(0, self.k)[0]

        draws = None if self.draws is None else {n: at_k(d) for n, d in self.draws.items()}
        batch = self.oracle.batch(at_k(self.index), at_k(self.weight), draws)
        return Feed(batch, None if self.running is None else at_k(self.running))

    def load(self, feed: Feed) -> None:
        """The next batch into its buffers: once for all gradients of a step."""
        batch, active = self._picked()
        feed.batch.x.copy_(batch.x)
        feed.batch.y.copy_(batch.y)
        feed.batch.weight.copy_(batch.weight)
        if feed.active is not None and active is not None:
            feed.active.copy_(active)
        self.k.add_(1)

    def body(self) -> None:
        """One local step on the buffers."""
        b, opaque = self.rows, self.opaque

        def gradient(v: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            if opaque is None:
                return self.oracle.gradient(v, batch)
            working = self.working if v is b.w else opaque.working(v)
            return torch.ops.fedsmoo.gradient(working, opaque.fine(v), batch.x, batch.y, batch.weight)

        w, me, loss = one_step(self.stage, gradient, b.w, b.me, *self.feeds[0])
        b.w.copy_(w)
        if self.working is not b.w:
            self.working.copy_(w)
        for name, v in me.items():
            getattr(b.me, name).copy_(v)
        self.total.add_(loss)

    def begin(self) -> None:
        """The group's stream waits for what was queued so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def end(self) -> None:
        """What is queued from now on waits for the group."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def prepare(self, compile: bool, capture: bool, passes: bool) -> None:
        """Make the step, as fast as asked for and as the method allows."""
        self.capture = capture and self.stream is not None
        self.passes = None
        if self.opaque is not None and passes and available(self.rows.w.device)[0]:
            try:
                self.passes = self._passes(self.opaque)
            except NotCompiled:
                pass  # beyond the passes: compiled whole
            except Exception as e:  # beyond tracing
                if ran_out(e):
                    raise
                say_slower("the local step cannot be cut into passes", e)
        if self.opaque is not None and self.passes is None:
            self.working = self.opaque.working(self.rows.w)
        options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "options": INLINE}
        self.loads = torch.compile(self.load, **options) if compile else self.load
        self.whole = torch.compile(self.body, **options) if compile and self.passes is None else self.body

    def _passes(self, oracle: OpaqueOracle) -> CompiledStep:
        from fedsmoo.compiler.step import CompiledStep  # needs Triton

        b = self.rows
        inputs = StepInputs(b.w, b.me, b.down, self.lr, self.feeds[0].active)
        return CompiledStep(oracle, self.stage.algorithm, self.stage.rule, inputs, b.spare, self.feeds, self.total)

    def round(self, steps: int, fill: Callable[[], None]) -> list[Callable[[], None]]:
        """What to call for a round of so many steps, captured where it can be; ``fill`` gives it something to work on.

        Two steps at a time, so that models that alternate between two buffers are back in the first one.
        """
        twos, odd = divmod(steps, 2)
        sizes = [2] * twos + [1] * odd
        marked = self.passes is not None and self.passes.marked_end
        units = [(size, marked and i + 1 == len(sizes)) for i, size in enumerate(sizes)]
        if self.passes is not None or self.working is not self.rows.w:
            units.insert(0, (0, False))
        return [self._unit(size, end, fill) for size, end in units]

    def _unit(self, steps: int, end: bool, fill: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            for i in range(steps):
                self._step(odd=i % 2 == 1, last=end and i + 1 == steps)

        def filled() -> None:
            fill()
            if steps and (0, False) in self.units:
                self._enter()

        key, work = (steps, end), work if steps else self._enter
        if key not in self.units:
            captive = self.capture and self.stream is not None
            self.units[key] = captured(work, self.stream, filled) if captive else work  # type: ignore[arg-type]
        return self.units[key]

    def _enter(self) -> None:
        """What comes before the first step."""
        if self.passes is not None:
            self.passes.enter()
            self.loads(self.feeds[0])
        else:
            self.working.copy_(self.rows.w)

    def _step(self, odd: bool, last: bool) -> None:
        token = _serving.set(self.opaque)
        try:
            if self.passes is None:
                self.loads(self.feeds[0])
                self.whole()
            else:
                with self.loader.beside():
                    self.loads(self.feeds[not odd])
                self.passes.step(odd, last)
                self.loader.join()
        finally:
            _serving.reset(token)

    def ends_in_spare(self, steps: int) -> bool:
        """Which of the two buffers holds the models after so many steps."""
        return self.passes is not None and self.passes.spare is not self.rows.w and steps % 2 == 1
