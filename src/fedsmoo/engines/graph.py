"""K local steps of C clients as compiled steps, captured as CUDA graphs and replayed.

Everything a step reads or writes lies in buffers that never move: weights, client vectors, what was sent, the plan, the
batch, the learning rate and the step counter. Hand-written kernels are one opaque operator, so that the method's
arithmetic around the gradient is traced whole and fused, whatever the method; the pass that writes the new weights also
writes them in the type that the kernels read. Nothing inside a round waits for the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core import Vectors
from fedsmoo.core.errors import first_line
from fedsmoo.engines.capture import captured
from fedsmoo.engines.memory import release
from fedsmoo.engines.oracles import OpaqueOracle, Oracle, products
from fedsmoo.engines.stack import of_clients
from fedsmoo.engines.steps import DevicePlan, Stage, eager_steps, one_step
from fedsmoo.engines.task import Batch

# A method's arithmetic is cheap beside the bytes of a vector: compute twice rather than store between.
INLINE: dict[str, Any] = {"realize_reads_threshold": 32, "realize_opcount_threshold": 256}
HEAD_START = 4  # steps queued before the host turns to other work
GROUPS = 2  # of clients, each on its own stream: one's update moves bytes while another's gradient computes

_serving: ContextVar[OpaqueOracle | None] = ContextVar("serving")  # whose gradients the step at hand takes


@torch.library.custom_op("fedsmoo::gradient", mutates_args=())
def _gradient(working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    oracle = _serving.get()
    assert oracle is not None
    return oracle.launch(working, fine, Batch(x, y, weight))


@_gradient.register_fake
def _(working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return fine.new_empty(working.shape), fine.new_empty(len(working))


class GraphSteps:
    """Local steps by replay of a captured graph; one recording per shape of batch.

    Where compiling or capturing is impossible it says so once and goes on with what works: correct, and slower.
    """

    def __init__(self, oracle: Oracle, compile: bool = True, capture: bool = True, groups: int | None = None) -> None:
        self.oracle, self.compile, self.capture = oracle, compile, capture
        # Groups run at the same time: an oracle with buffers of its own serves one of them.
        self.oracles = [oracle]
        if isinstance(oracle, OpaqueOracle):
            self.oracles += [oracle.twin() for _ in range((groups or GROUPS) - 1)]
        self.recordings: dict[tuple[Any, ...], Recording] = {}
        self.sizes: set[int] = set()

    def __call__(
        self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Callable[[], None] | None = None
    ) -> tuple[Tensor, Vectors, Tensor]:
        # Each recording compiles its step once, on purpose: a sweep of many methods is no runaway recompilation.
        unlimited = torch._dynamo.config.patch(recompile_limit=2**31, accumulated_recompile_limit=2**31)
        with products(self.oracle.task), unlimited:
            return self._steps(stage, w, me, plan, meanwhile)

    def _steps(
        self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Callable[[], None] | None
    ) -> tuple[Tensor, Vectors, Tensor]:
        clients = len(w)
        self.sizes.add(clients)
        # Cohorts of changing size share a few recordings: filled up with clients that never become active. Several runs
        # in one batch have cohorts of fixed size, and numbers for each client.
        room = clients if len(self.sizes) == 1 or len(stage.tag) > 1 else -(-clients // 4) * 4
        padded = room != clients
        key = (stage.tag, room, plan.shape, padded or plan.running is not None)
        recording = self.recordings.get(key)
        if recording is None or recording.steps < len(plan.index):
            recording = self._record(key, stage, me, plan, room)
        if recording is None:
            return eager_steps(self.oracle, stage, w, me, plan, meanwhile)
        return recording.run(stage, w, me, plan, meanwhile)

    def _record(self, key: tuple[Any, ...], stage: Stage, me: Vectors, plan: DevicePlan, room: int) -> Recording | None:
        self.recordings.pop(key, None)
        crowded = False
        while self.compile or self.capture:
            if crowded:
                release()
            try:
                recording = Recording(self.oracles, stage, me, plan, room, key[-1], self.compile, self.capture)
            except torch.OutOfMemoryError:
                crowded = bool(self.recordings)  # by buffers for other sizes of cohort
                if not crowded:
                    raise
                self.recordings.clear()
                for oracle in self.oracles:
                    oracle.forget()
            except Exception as e:
                what = "compiled" if self.compile else "captured as a graph"
                warnings.warn(
                    f"the local step cannot be {what} and runs slower: {first_line(e)}", RuntimeWarning, stacklevel=2
                )
                self.compile, self.capture = False, self.capture and self.compile
            else:
                self.recordings[key] = recording
                return recording
        return None


@dataclass(frozen=True)
class Rows:
    """Vectors of C clients that steps read and write; ``working`` equals ``w``, in the type that an oracle reads."""

    w: Tensor
    working: Tensor
    me: Vectors
    down: Vectors

    @classmethod
    def make(cls, oracle: Oracle, stage: Stage, me: Vectors, room: int) -> Rows:
        size, new = stage.down.w.shape[-1], stage.down.w.new_zeros
        w = new(room, size)
        return cls(
            w,
            oracle.working(w) if isinstance(oracle, OpaqueOracle) else w,
            me.map(lambda v: new(room, size)),
            stage.down.map(lambda v: new(v.shape) if v.dim() == 1 else new(room, size)),
        )

    def of(self, part: slice) -> Rows:
        """The same memory, of some clients."""
        w = self.w[part]
        return Rows(
            w,
            w if self.working is self.w else self.working[part],
            self.me.map(lambda v: v[part]),
            self.down.map(lambda v: v if v.dim() == 1 else v[part]),
        )

    def fill(self, stage: Stage, w: Tensor, me: Vectors) -> None:
        """Copy a round's inputs."""
        clients = len(w)
        self.w[:clients].copy_(w)
        if self.working is not self.w:
            self.working[:clients].copy_(w)
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
            return t.new_zeros(steps, room, width)

        self.index, self.weight = over_steps(plan.index), over_steps(plan.weight)
        self.draws = None if plan.draws is None else {n: over_steps(d) for n, d in plan.draws.items()}
        self.running = torch.zeros(steps, room, 1, dtype=torch.bool, device=w.device) if masked else None
        self.lr = w.new_zeros(room, 1) if isinstance(stage.lr, Tensor) else w.new_zeros(())
        self.total = w.new_zeros(room)
        self.k = torch.zeros(1, dtype=torch.int64, device=w.device)
        self.batch, self.active = self._picked()
        algorithm, rule = stage.algorithm, stage.rule
        if len(stage.tag) > 1:  # of several runs, whose numbers may differ
            algorithm, rule = of_clients(algorithm, part), of_clients(rule, part)
        self.stage = Stage(algorithm, rule, self.rows.down, self.lr, stage.tag)
        self.stream = torch.cuda.Stream(w.device) if w.device.type == "cuda" else None
        self.step: Callable[[], None]  # made by prepare()

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

    def _picked(self) -> tuple[Batch, Tensor | None]:
        """The batch of step ``k``, and which clients are still running."""

        def at_k(t: Tensor) -> Tensor:
            return t.index_select(0, self.k)[0]

        draws = None if self.draws is None else {n: at_k(d) for n, d in self.draws.items()}
        batch = self.oracle.batch(at_k(self.index), at_k(self.weight), draws)
        return batch, None if self.running is None else at_k(self.running)

    def load(self) -> None:
        """The step's batch into its buffers: once for all gradients of the step."""
        batch, active = self._picked()
        self.batch.x.copy_(batch.x)
        self.batch.y.copy_(batch.y)
        self.batch.weight.copy_(batch.weight)
        if self.active is not None and active is not None:
            self.active.copy_(active)

    def body(self) -> None:
        """One local step on the buffers."""
        b, opaque = self.rows, self.opaque

        def gradient(v: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            if opaque is None:
                return self.oracle.gradient(v, batch)
            working = b.working if v is b.w else opaque.working(v)
            return torch.ops.fedsmoo.gradient(working, opaque.fine(v), batch.x, batch.y, batch.weight)

        w, me, loss = one_step(self.stage, gradient, b.w, b.me, self.batch, self.active)
        b.w.copy_(w)
        if b.working is not b.w:
            b.working.copy_(w)
        for name, v in me.items():
            getattr(b.me, name).copy_(v)
        self.total.add_(loss)
        self.k.add_(1)

    def begin(self) -> None:
        """The group's stream waits for what was queued so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def end(self) -> None:
        """What is queued from now on waits for the group."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def prepare(self, compile: bool, capture: bool, fill: Callable[[], None]) -> None:
        """Compile the step, warm it up and capture it, as far as asked for; ``fill`` gives it something to work on."""
        load, body = self.load, self.body
        if compile:
            load, body = (torch.compile(f, fullgraph=True, dynamic=False, options=INLINE) for f in (load, body))

        def step() -> None:
            token = _serving.set(self.opaque)
            try:
                load()
                body()
            finally:
                _serving.reset(token)

        self.step = step if not capture or self.stream is None else captured(step, self.stream, fill)


class Recording:
    """The buffers of one shape of batch, and the groups of clients that work on them."""

    def __init__(
        self,
        oracles: Sequence[Oracle],
        stage: Stage,
        me: Vectors,
        plan: DevicePlan,
        room: int,
        masked: bool,
        compile: bool,
        capture: bool,
    ) -> None:
        self.steps = len(plan.index)
        if masked:  # unequal clients: room for longer rounds
            self.steps += self.steps // 4
        self.rows = Rows.make(oracles[0], stage, me, room)
        size = -(-room // len(oracles))
        parts = [slice(start, start + size) for start in range(0, room, size)]
        self.groups = [
            Group(oracle, stage, self.rows, part, plan, self.steps, masked)
            for oracle, part in zip(oracles, parts, strict=False)  # a single client: one group
        ]

        def fill() -> None:
            self._fill(stage, self.rows.w[: plan.index.shape[1]], me, plan)

        for group in self.groups:
            group.prepare(compile, capture, fill)

    def _fill(self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan) -> None:
        self.rows.fill(stage, w, me)
        for group in self.groups:
            group.fill(stage, plan)

    def run(
        self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Callable[[], None] | None = None
    ) -> tuple[Tensor, Vectors, Tensor]:
        """A round's local steps. The results are views of the buffers, good until the next round.

        ``meanwhile`` is called with a few steps queued: later, the queue may be full and the host would wait first.
        """
        self._fill(stage, w, me, plan)
        for group in self.groups:
            group.begin()
        for k in range(len(plan.index)):
            for group in self.groups:
                with torch.cuda.stream(group.stream):  # None: as it was
                    group.step()
            if meanwhile is not None and k == min(HEAD_START, len(plan.index)) - 1:
                meanwhile()
        for group in self.groups:
            group.end()
        clients = len(w)
        total = torch.cat([group.total for group in self.groups])[:clients]
        return self.rows.w[:clients], self.rows.me.map(lambda v: v[:clients]), total
