"""K local steps of C clients, compiled, captured as CUDA graphs and replayed: nothing in a round waits for the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.round_end import CompiledRoundEnd
from fedsmoo.core import Round, Vectors
from fedsmoo.engines.client_state.memory import ran_out, release
from fedsmoo.engines.oracles import OpaqueOracle, Oracle, products
from fedsmoo.engines.steps.capture import say_slower
from fedsmoo.engines.steps.eager import DevicePlan, Stage, eager_steps, plain_end
from fedsmoo.engines.steps.group import Group, Rows
from fedsmoo.kernels import available

HEAD_START = 3  # replays queued before the host turns to other work
# Groups of clients, each on its own stream: one's update moves bytes while another's gradient computes. Of groups
# smaller than this, two take as long as one or longer, as they happen to fall against each other.
GROUPS, FEWEST = 2, 16


def without_limit() -> Any:
    """Each recording compiles its step once, on purpose: a sweep of many methods is no runaway recompilation."""
    return torch._dynamo.config.patch(recompile_limit=2**31, accumulated_recompile_limit=2**31)


class GraphSteps:
    """Local steps by replay of a captured graph; one recording per shape of batch.

    Where compiling or capturing is impossible it says so once and goes on with what works: correct, and slower.
    """

    def __init__(
        self,
        oracle: Oracle,
        compile: bool = True,
        capture: bool = True,
        groups: int | None = None,
        passes: bool = True,
    ) -> None:
        self.oracle, self.compile, self.capture, self.passes = oracle, compile, capture, passes
        self.asked = compile
        # Groups run at the same time: an oracle with buffers of its own serves one of them.
        self.oracles, self.fewest = [oracle], FEWEST if groups is None else 1
        if isinstance(oracle, OpaqueOracle):
            self.oracles += [oracle.twin() for _ in range((groups or GROUPS) - 1)]
        self.recordings: dict[tuple[Any, ...], Recording] = {}
        self.endings: dict[tuple[Any, ...], CompiledRoundEnd | None] = {}

    def __call__(
        self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Callable[[], None] | None = None
    ) -> tuple[Tensor, Vectors, Tensor]:
        # Steps that are not captured may compile in any round.
        unlimited = nullcontext() if self.capture and w.device.type == "cuda" else without_limit()
        with products(self.oracle.task), unlimited:
            return self._steps(stage, w, me, plan, meanwhile)

    def end(self, stage: Stage, w: Tensor, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors, Tensor]:
        """What clients keep and send after their steps, and how far they went."""
        key = (stage.tag, *w.shape)
        # Kernels are launched on the current device.
        with torch.cuda.device(w.device) if w.device.type == "cuda" else nullcontext():
            if key not in self.endings:
                self.endings[key] = self._ending(stage, w, me, rnd)
            compiled = self.endings[key]
            return plain_end(stage, w, me, rnd) if compiled is None else compiled(w, stage.down, me, rnd)

    def _ending(self, stage: Stage, w: Tensor, me: Vectors, rnd: Round) -> CompiledRoundEnd | None:
        """A pass, tried out; none for a method beyond it, which ends as it is written."""
        if not self.passes or not isinstance(self.oracle, OpaqueOracle) or not available(w.device)[0]:
            return None
        try:
            ending = CompiledRoundEnd(stage.algorithm, w, stage.down, me, rnd)
            ending(w, stage.down, me, rnd)
        except NotCompiled:
            return None
        except Exception as e:  # a method that looks at its numbers, for one
            if ran_out(e):
                raise
            say_slower("the end of a round cannot be one pass", e)
            return None
        return ending

    def _steps(
        self, stage: Stage, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Callable[[], None] | None
    ) -> tuple[Tensor, Vectors, Tensor]:
        clients = len(w)
        # Cohorts of changing size share a few recordings: filled up with clients that never become active. Not by what
        # sizes there were so far: a resumed run must take the same ones.
        room = -(-clients // 4) * 4 if stage.varies else clients
        padded = room != clients
        key = (stage.tag, room, plan.shape, padded or plan.running is not None)
        recording = self.recordings.get(key)
        if recording is None or recording.steps < len(plan.index):
            with without_limit():
                recording = self._record(key, stage, me, plan, room)
        if recording is None:
            return eager_steps(self.oracle, stage, w, me, plan, meanwhile)
        return recording.run(stage, w, me, plan, meanwhile)

    def _record(self, key: tuple[Any, ...], stage: Stage, me: Vectors, plan: DevicePlan, room: int) -> Recording | None:
        self.recordings.pop(key, None)
        oracles = self.oracles[: max(1, room // self.fewest)]
        while self.compile or self.capture:
            recording: Recording | None = None
            crowded = False
            try:
                recording = Recording(oracles, stage, me, plan, room, key[-1], self.passes)
                recording.prepare(stage, me, plan, self.compile, self.capture, self.passes)
            except Exception as e:
                crowded = ran_out(e) and bool(self.recordings)  # by buffers for other sizes of cohort
                if ran_out(e) and not crowded:  # what is free must not decide how a step is computed
                    raise
                if not crowded:
                    self._give_up(recording is not None and recording.cut, e)
            else:
                self.recordings[key] = recording
                return recording
            if crowded:
                recording = None
                self.recordings.clear()
                for oracle in self.oracles:
                    oracle.forget()
                release()
        return None

    def _give_up(self, cut: bool, why: Exception) -> None:
        """Go on with less; what was cut may have failed in the passes or in what is compiled beside them."""
        what = "compiled" if self.compile else "cut into passes" if cut else "captured as a graph"
        say_slower(f"the local step cannot be {what}", why)
        if self.compile:
            self.compile = False
        elif cut:
            self.passes, self.compile = False, self.asked
        else:
            self.capture = False


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
        passes: bool,
    ) -> None:
        self.steps, self.masked = len(plan.index), masked
        if masked:  # unequal clients: room for longer rounds
            self.steps += 1 + self.steps // 4
        alternate = passes and isinstance(oracles[0], OpaqueOracle) and stage.rule.clip is not None
        self.rows = Rows.make(stage, me, room, alternate)
        size = -(-room // len(oracles))
        parts = [slice(start, start + size) for start in range(0, room, size)]
        self.groups = [
            Group(oracle, stage, self.rows, part, plan, self.steps, masked)
            for oracle, part in zip(oracles, parts, strict=False)  # a single client: one group
        ]

    def prepare(self, stage: Stage, me: Vectors, plan: DevicePlan, compile: bool, capture: bool, passes: bool) -> None:
        """Make the step and, where that is asked for, compile and capture it."""
        for group in self.groups:
            group.prepare(compile, capture, passes)
        if self.cut and any(group.passes is None for group in self.groups):  # all or none
            for group in self.groups:
                group.prepare(compile, capture, passes=False)
        lengths = [len(plan.index)]
        if self.masked:  # rounds of other lengths will come: an even and an odd one have all there is to capture
            lengths.append(lengths[0] + 1)
        for steps in lengths:
            self._units(stage, me, plan, steps)

    @property
    def cut(self) -> bool:
        """Whether the step is cut into passes."""
        return any(group.passes is not None for group in self.groups)

    def _units(self, stage: Stage, me: Vectors, plan: DevicePlan, steps: int) -> list[tuple[Callable[[], None], ...]]:
        """What each group is to call, one after the other; what is not captured yet is, on the buffers as they are."""

        def fill() -> None:
            self._fill(stage, self.rows.w[: plan.index.shape[1]], me, plan)

        return list(zip(*(group.round(steps, fill) for group in self.groups), strict=True))

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
        units = self._units(stage, me, plan, len(plan.index))
        self._fill(stage, w, me, plan)
        for group in self.groups:
            group.begin()
        for i, row in enumerate(units):
            for group, unit in zip(self.groups, row, strict=True):
                with torch.cuda.stream(group.stream):  # None: as it was
                    unit()
            if meanwhile is not None and i == min(HEAD_START, len(units)) - 1:
                meanwhile()
        for group in self.groups:
            group.end()
        clients, steps = len(w), len(plan.index)
        total = torch.cat([group.total for group in self.groups])[:clients]
        models = self.rows.spare if self.groups[0].ends_in_spare(steps) else self.rows.w
        assert models is not None
        return models[:clients], self.rows.me.map(lambda v: v[:clients]), total
