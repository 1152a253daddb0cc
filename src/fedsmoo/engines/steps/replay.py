"""Local steps of C clients, compiled, captured as CUDA graphs and replayed: nothing in a round waits for the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.round_end import CompiledRoundEnd
from fedsmoo.core import Vectors
from fedsmoo.engines.client_state.memory import ran_out, release
from fedsmoo.engines.contract import Meanwhile
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.steps.capture import warn_slower
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.group import ClientGroup, Ways
from fedsmoo.engines.steps.moving import fill_numbers, number_buffers
from fedsmoo.engines.steps.rows import Rows
from fedsmoo.engines.steps.stepper import Assignment, DevicePlan, Ended, Stepped
from fedsmoo.kernels import available

HEAD_START = 8  # replays queued before the host turns to other work, which takes it a few milliseconds
# Groups of clients, each on its own stream: one's update moves bytes while another's gradient computes. Two groups of
# fewer clients than this take as long as one group of all, or longer.
GROUPS, FEWEST = 2, 16


def without_limit() -> Any:
    """Lift Dynamo's limit of recompilations: each recording compiles its step once, and a sweep has many methods."""
    return torch._dynamo.config.patch(recompile_limit=2**31, accumulated_recompile_limit=2**31)


class Shape(NamedTuple):
    """What decides which recording serves a round, beside the length of the round."""

    runs: tuple[int, ...]
    moving: frozenset[str]
    room: int  # for so many clients
    batch: tuple[Any, ...]
    masked: bool  # whether some clients may stop before others, or never begin


class ReplayStepper:
    """Takes local steps by replay of captured CUDA graphs; one recording per shape of batch.

    Where compiling or capturing is impossible it warns once, notes it in the oracle's ``slower`` and goes on with what
    works: correct, and slower.

    Args:
        oracle: the gradients.
        compile: compile what is not a generated pass with ``torch.compile``.
        capture: capture steps as CUDA graphs, on a GPU.
        groups: how many groups of clients run at the same time (default: by a rule).
        passes: cut steps around hand-written kernels into generated passes.
    """

    def __init__(
        self, oracle: Oracle, compile: bool = True, capture: bool = True, groups: int | None = None, passes: bool = True
    ) -> None:
        self.oracle, self.compile, self.capture, self.passes = oracle, compile, capture, passes
        self.may_compile = compile
        self.oracles, self.fewest = oracle.replicas(groups or GROUPS), FEWEST if groups is None else 1
        self.eager = EagerStepper(oracle)
        self.recordings: dict[Shape, Recording] = {}
        self.endings: dict[tuple[Any, ...], CompiledRoundEnd | None] = {}
        self.coming: DevicePlan | None = None

    def steps(
        self, given: Assignment, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Meanwhile | None = None
    ) -> Stepped:
        # Steps that are not captured may compile in any round.
        unlimited = nullcontext() if self.capture and w.device.type == "cuda" else without_limit()
        with products(self.oracle.task), unlimited:
            return self._steps(given, w, me, plan, meanwhile)

    def ahead(self, plan: DevicePlan) -> None:
        self.coming = plan

    def end(self, given: Assignment, w: Tensor, me: Vectors) -> Ended:
        key = (given.runs, *w.shape, given.moving)
        # Kernels are launched on the current device.
        with torch.cuda.device(w.device) if w.device.type == "cuda" else nullcontext():
            if key not in self.endings:
                self.endings[key] = self._ending(given, w, me)
            compiled = self.endings[key]
            if compiled is None:
                return self.eager.end(given, w, me)
            fill_numbers(compiled.algorithm, given.algorithm, given.moving, slice(None))
            return compiled(w, given.down, me, given.rnd)

    def _ending(self, given: Assignment, w: Tensor, me: Vectors) -> CompiledRoundEnd | None:
        """Compile the end of a round into one pass, and try it; ``None`` for a method that a pass cannot express."""
        if not self.passes or self.oracle.kernels is None or not available(w.device)[0]:
            return None
        try:
            method = number_buffers(given.algorithm, given.moving, len(w), w)
            ending = CompiledRoundEnd(method, w, given.down, me, given.rnd)
            ending(w, given.down, me, given.rnd)
        except NotCompiled:
            return None
        except Exception as e:  # a method that looks at its numbers, for one
            if ran_out(e):
                raise
            warn_slower("the end of a round cannot be one pass", e, self.oracle.slower)
            return None
        return ending

    def _steps(
        self, given: Assignment, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Meanwhile | None
    ) -> Stepped:
        clients = len(w)
        # Cohorts of changing size share a few recordings, padded with clients that never become active. The padded size
        # does not depend on the rounds before: a resumed run must take the same one.
        room = -(-clients // 4) * 4 if given.varies else clients
        shape = Shape(given.runs, given.moving, room, plan.shape, room != clients or plan.running is not None)
        recording = self.recordings.get(shape)
        if recording is None or recording.steps < len(plan.index):
            recording = self._record(shape, given, me, plan)
        if recording is None:
            return self.eager.steps(given, w, me, plan, meanwhile)
        stepped = recording.run(given, w, me, plan, meanwhile)
        if self.coming is not None:  # queued behind the steps, so that the next round need not begin with it
            recording.hold(self.coming)
            self.coming = None
        return stepped

    def _record(self, shape: Shape, given: Assignment, me: Vectors, plan: DevicePlan) -> Recording | None:
        """Make and keep the recording of a shape, in the fastest way that works; ``None`` if none does."""
        self.recordings.pop(shape, None)
        while self.compile or self.capture:
            recording, crowded = self._try_to_record(shape, given, me, plan)
            if recording is not None:
                self.recordings[shape] = recording
                return recording
            if crowded:  # by buffers for other sizes of cohort; those of the attempt are gone by now
                self.recordings.clear()
                for oracle in self.oracles:
                    oracle.free_buffers()
                release()
        return None

    def _try_to_record(
        self, shape: Shape, given: Assignment, me: Vectors, plan: DevicePlan
    ) -> tuple[Recording | None, bool]:
        """Return a recording; or ``None``, and whether there was no room for it beside other recordings."""
        recording = None
        try:
            recording = Recording(self.oracles[: max(1, shape.room // self.fewest)], given, me, plan, shape)
            recording.prepare(given, me, plan, Ways(self.compile, self.capture, self.passes))
            return recording, False
        except Exception as e:
            if ran_out(e):
                if not self.recordings:  # what is free must not decide how a step is computed
                    raise
                return None, True
            self._give_up(recording is not None and recording.cut, e)
            return None, False

    def _give_up(self, cut: bool, why: Exception) -> None:
        """Switch off what failed, and warn; a step cut into passes may have failed in what is compiled beside them."""
        what = "compiled" if self.compile else "cut into passes" if cut else "captured as a graph"
        warn_slower(f"the local step cannot be {what}", why, self.oracle.slower)
        if self.compile:
            self.compile = False
        elif cut:
            self.passes, self.compile = False, self.may_compile
        else:
            self.capture = False


class Recording:
    """The buffers for one shape of batch, and the groups of clients that work on them."""

    def __init__(
        self, oracles: Sequence[Oracle], given: Assignment, me: Vectors, plan: DevicePlan, shape: Shape
    ) -> None:
        self.steps, self.shape, room = len(plan.index), shape, shape.room
        if shape.masked:  # unequal clients: room for longer rounds
            self.steps += 1 + self.steps // 4
        self.rows = Rows.make(given, me, room)
        size = -(-room // len(oracles))
        parts = [slice(start, start + size) for start in range(0, room, size)]
        self.groups = [
            ClientGroup(oracle, given, self.rows, part, plan, self.steps, shape.masked)
            for oracle, part in zip(oracles, parts, strict=False)  # a single client: one group
        ]

    def prepare(self, given: Assignment, me: Vectors, plan: DevicePlan, ways: Ways) -> None:
        """Make every group's step, compiled and captured where asked for."""
        if ways.passes and given.rule.clip is not None and all(g.kernels() is not None for g in self.groups):
            self.rows = self.rows.alternating()
            for group in self.groups:
                group.rows = self.rows.of(group.part)
        for group in self.groups:
            group.prepare(ways)
        if self.cut and any(group.passes is None for group in self.groups):  # all or none
            for group in self.groups:
                group.prepare(ways._replace(passes=False))
        lengths = [len(plan.index)]
        if self.shape.masked:  # rounds of other lengths will come: an even and an odd one need all segments there are
            lengths.append(lengths[0] + 1)
        with without_limit() if any(group.compiles for group in self.groups) else nullcontext():
            for steps in lengths:
                self._segments(given, me, plan, steps)

    @property
    def cut(self) -> bool:
        """Whether steps are cut into generated passes."""
        return any(group.passes is not None for group in self.groups)

    def _segments(
        self, given: Assignment, me: Vectors, plan: DevicePlan, steps: int
    ) -> list[tuple[Callable[[], None], ...]]:
        """Return what each group is to call, one row after the other; segments that are new are captured now."""

        def fill() -> None:
            self._fill(given, self.rows.w[: plan.index.shape[1]], me, plan)

        return list(zip(*(group.round(steps, fill) for group in self.groups), strict=True))

    def _fill(self, given: Assignment, w: Tensor, me: Vectors, plan: DevicePlan) -> None:
        self.rows.fill(given, w, me)
        for group in self.groups:
            group.fill(given, plan)

    def hold(self, plan: DevicePlan) -> None:
        """Copy the plan of the next round, if these buffers have room for it."""
        steps, clients = plan.index.shape[:2]
        room = steps <= self.steps and clients <= len(self.rows.w)
        if room and plan.shape == self.shape.batch and (self.shape.masked or plan.running is None):
            for group in self.groups:
                group.hold(plan)

    def run(
        self, given: Assignment, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Meanwhile | None = None
    ) -> Stepped:
        """Take a round's local steps. The results are views of the buffers, good until the next round.

        ``meanwhile`` is called with a few steps queued: later, the queue may be full and the host would wait first.
        """
        segments = self._segments(given, me, plan, len(plan.index))
        self._fill(given, w, me, plan)
        for group in self.groups:
            group.fork()
        try:
            for i, row in enumerate(segments):
                for group, segment in zip(self.groups, row, strict=True):
                    with torch.cuda.stream(group.stream):  # None: as it was
                        segment()
                if meanwhile is not None and i == min(HEAD_START, len(segments)) - 1:
                    meanwhile()
        finally:  # after a failure, too: queued steps still write to buffers, whose memory is given out again
            for group in self.groups:
                group.join()
        clients, steps = len(w), len(plan.index)
        total = torch.cat([group.total for group in self.groups])[:clients]
        models = self.rows.spare if self.groups[0].ends_in_spare(steps) else self.rows.w
        assert models is not None
        return models[:clients], self.rows.me.map(lambda v: v[:clients]), total
