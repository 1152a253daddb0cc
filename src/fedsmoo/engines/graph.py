"""K local steps of C clients as one compiled step, captured as a CUDA graph and replayed.

Everything a step reads or writes lies in buffers that never move: weights, client vectors, what was sent, the plan, the
batch, the learning rate and the step counter. Hand-written kernels are one opaque operator, so that the method's
arithmetic around the gradient is traced whole and fused, whatever the method; the pass that writes the new weights also
writes them in the type that the kernels read. Nothing inside a round waits for the host.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core import Vectors
from fedsmoo.engines.oracles import OpaqueOracle, Oracle, products
from fedsmoo.engines.steps import DevicePlan, Stage, eager_steps, one_step
from fedsmoo.engines.task import Batch

# A method's arithmetic is cheap beside the bytes of a vector: compute twice rather than store between.
INLINE: dict[str, Any] = {"realize_reads_threshold": 32, "realize_opcount_threshold": 256}
HEAD_START = 4  # steps queued before the host turns to other work
_numbers = itertools.count()
_oracles: weakref.WeakValueDictionary[int, OpaqueOracle] = weakref.WeakValueDictionary()


@torch.library.custom_op("fedsmoo::gradient", mutates_args=())
def _gradient(
    working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor, oracle: int
) -> tuple[Tensor, Tensor]:
    return _oracles[oracle].launch(working, fine, Batch(x, y, weight))


@_gradient.register_fake
def _(working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor, oracle: int) -> tuple[Tensor, Tensor]:
    return fine.new_empty(working.shape), fine.new_empty(len(working))


class GraphSteps:
    """Local steps by replay of a captured graph; one recording per shape of batch.

    Where compiling or capturing is impossible it says so once and goes on with what works: correct, and slower.
    """

    def __init__(self, oracle: Oracle, compile: bool = True, capture: bool = True) -> None:
        self.oracle, self.compile, self.capture = oracle, compile, capture
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
        while self.compile or self.capture:
            try:
                recording = Recording(self.oracle, stage, me, plan, room, key[-1], self.compile, self.capture)
            except torch.OutOfMemoryError:
                self.recordings.clear()
                raise
            except Exception as e:
                what = "compiled" if self.compile else "captured as a graph"
                reason = (str(e).strip() or type(e).__name__).splitlines()[0]
                warnings.warn(
                    f"the local step cannot be {what} and runs slower: {reason}", RuntimeWarning, stacklevel=2
                )
                self.compile, self.capture = False, self.capture and self.compile
            else:
                self.recordings[key] = recording
                return recording
        return None


class Recording:
    """The buffers of one shape of batch, and the step that works on them."""

    def __init__(
        self,
        oracle: Oracle,
        stage: Stage,
        me: Vectors,
        plan: DevicePlan,
        room: int,
        masked: bool,
        compile: bool,
        capture: bool,
    ) -> None:
        self.oracle, self.number = oracle, next(_numbers)
        self.opaque = oracle if isinstance(oracle, OpaqueOracle) else None
        if self.opaque is not None:
            _oracles[self.number] = self.opaque
        self.steps = len(plan.index) + (
            len(plan.index) // 4 if masked else 0
        )  # unequal clients: room for longer rounds
        size = stage.down.w.shape[-1]
        new = stage.down.w.new_zeros
        self.w = new(room, size)
        # Kept equal to w, in the kernels' type.
        self.working = self.w if self.opaque is None else self.opaque.working(self.w)
        self.me = me.map(lambda v: new(room, size))
        self.down = stage.down.map(lambda v: new(v.shape) if v.dim() == 1 else new(room, size))
        self.lr = new(()) if not isinstance(stage.lr, Tensor) else new(room, 1)
        self.total = new(room)
        self.k = torch.zeros(1, dtype=torch.int64, device=self.w.device)
        width = plan.index.shape[2]

        def over_steps(t: Tensor, last: int) -> Tensor:
            return t.new_zeros(self.steps, room, last)

        self.index, self.weight = over_steps(plan.index, width), over_steps(plan.weight, width)
        self.running = torch.zeros(self.steps, room, 1, dtype=torch.bool, device=self.w.device) if masked else None
        self.draws = None if plan.draws is None else {n: over_steps(d, width) for n, d in plan.draws.items()}
        self.batch, self.active = self._picked()
        self.stage = Stage(stage.algorithm, stage.rule, self.down, self.lr, stage.tag)
        self.step = self._prepared(stage, me, plan, compile, capture)

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

        opaque = self.opaque

        def gradient(v: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            if opaque is None:
                return self.oracle.gradient(v, batch)
            working = self.working if v is self.w else opaque.working(v)
            return torch.ops.fedsmoo.gradient(working, opaque.fine(v), batch.x, batch.y, batch.weight, self.number)

        w, me, loss = one_step(self.stage, gradient, self.w, self.me, self.batch, self.active)
        self.w.copy_(w)
        if self.working is not self.w:
            self.working.copy_(w)
        for name, v in me.items():
            getattr(self.me, name).copy_(v)
        self.total.add_(loss)
        self.k.add_(1)

    def _prepared(
        self, stage: Stage, me: Vectors, plan: DevicePlan, compile: bool, capture: bool
    ) -> Callable[[], None]:
        """The step compiled, warmed up and captured, as far as asked for."""
        load, body = self.load, self.body
        if compile:
            load, body = (torch.compile(f, fullgraph=True, dynamic=False, options=INLINE) for f in (load, body))

        def step() -> None:
            load()
            body()

        if not capture or self.w.device.type != "cuda":
            return step
        side = torch.cuda.Stream(self.w.device)
        side.wait_stream(torch.cuda.current_stream(self.w.device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._fill(stage, self.w[: len(plan.weight[0])], me, plan)
                step()
        torch.cuda.current_stream(self.w.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def _fill(self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan) -> None:
        """Copy a round's inputs into the buffers; rows beyond its clients never become active."""
        clients, steps = len(w), len(plan.index)
        self.w[:clients].copy_(w)
        if self.working is not self.w:
            self.working[:clients].copy_(w)
        for name, v in me.items():
            getattr(self.me, name)[:clients].copy_(v)
        for name, v in stage.down.items():
            getattr(self.down, name)[: len(v)].copy_(v)
        if isinstance(stage.lr, Tensor):
            self.lr[:clients].copy_(stage.lr)
        else:
            self.lr.fill_(stage.lr)
        pairs = [(self.index, plan.index), (self.weight, plan.weight)]
        pairs += [] if self.draws is None or plan.draws is None else [(self.draws[n], d) for n, d in plan.draws.items()]
        for buffer, source in pairs:
            buffer[:steps, :clients].copy_(source)
        if self.running is not None:
            self.running.zero_()
            self.running[:steps, :clients] = True if plan.running is None else plan.running
            self.weight[:, clients:].zero_()
        self.total.zero_()
        self.k.zero_()

    def run(
        self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Callable[[], None] | None = None
    ) -> tuple[Tensor, Vectors, Tensor]:
        """A round's local steps. The results are views of the buffers, good until the next round.

        ``meanwhile`` is called with a few steps queued: later, the queue may be full and the host would wait first.
        """
        self._fill(stage, w, me, plan)
        for k in range(len(plan.index)):
            self.step()
            if meanwhile is not None and k == min(HEAD_START, len(plan.index)) - 1:
                meanwhile()
        clients = len(w)
        return self.w[:clients], self.me.map(lambda v: v[:clients]), self.total[:clients]
