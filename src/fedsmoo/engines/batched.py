"""All clients of a cohort at once: one batch of models. Cohorts of several runs may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, methodcaller
from typing import NamedTuple

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Round, Vectors
from fedsmoo.core.errors import first_line
from fedsmoo.data.batches.plan import merge
from fedsmoo.engines.client_state.memory import clients_that_fit, ran_out, release
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Outcome, Setup, Sums, Work
from fedsmoo.engines.fused import FusedOracle, fused_reason
from fedsmoo.engines.oracles import Oracle, hand_oracle, vmap_oracle
from fedsmoo.engines.steps.eager import DevicePlan, Stage, eager_steps, plain_end
from fedsmoo.engines.steps.replay import GraphSteps
from fedsmoo.engines.steps.stack import stack_algorithms, stack_rules
from fedsmoo.engines.task import Samples

Meanwhile = Callable[[], None]
Steps = Callable[[Stage, Tensor, Vectors, DevicePlan, Meanwhile | None], tuple[Tensor, Vectors, Tensor]]


def make_oracle(setup: Setup, kind: str) -> tuple[str, Oracle]:
    """An engine's name and oracle: kernels where they serve, else by hand where the model can, else ``vmap``."""
    task = setup.task
    if kind in ("auto", "fused") and task.device.type == "cuda" and not fused_reason(task):
        return "fused", FusedOracle(task)
    if kind == "fused":
        raise FedsmooError(f"the hand-written kernels cannot serve here: {fused_reason(task)}")
    by_hand = task.model.batched is not None if kind == "auto" else kind == "hand"
    return ("batched", hand_oracle(task)) if by_hand else ("vmap", vmap_oracle(task))


@dataclass(frozen=True)
class Lane:
    """One run's part of a batch of clients."""

    engine: Batched
    work: Work
    part: slice

    @property
    def clients(self) -> list[int]:
        return self.work.clients[self.part]


class Batched:
    """The engine for one machine: C models as ``[C, P]``, C gradients from one call of the oracle.

    ``chunk`` clients run at once, or as many as fit by a rule (``memory.clients_that_fit``): the result is the same but
    for its last bits. On CUDA a local step is compiled and captured once as a graph, and replayed.
    """

    why = ""

    def __init__(
        self,
        setup: Setup,
        table: ClientTable | None = None,
        oracle: str = "auto",
        chunk: int | None = None,
        batch_size: int = 1,
    ) -> None:
        if setup.task.model.random:
            raise FedsmooError(
                f"the model {type(setup.task.model.module).__name__} draws random numbers while it trains (dropout and "
                "the like), so that clients cannot share a batch: use engine=serial, or engine=auto, which takes it"
            )
        self.setup = setup
        self.table = table or ClientTable(setup.algorithm.own)
        self.name, self.oracle = make_oracle(setup, oracle)
        self.chunk, self.fits = chunk, chunk or clients_that_fit(setup, batch_size)
        on_gpu = setup.task.device.type == "cuda"
        self.steps: Steps = GraphSteps(self.oracle) if on_gpu else partial(eager_steps, self.oracle)

    @property
    def at_once(self) -> int:
        """How many clients run at once, in cohorts that have as many."""
        return self.chunk or self.fits

    def evaluate(self, w: Tensor, on: Samples | None = None) -> tuple[float, float]:
        return self.oracle.evaluate(w, on)

    def run_round(self, work: Work, meanwhile: Meanwhile | None = None) -> Outcome:
        """One round; ``meanwhile`` is called while the device is busy."""
        chunk = min(self.at_once, len(work.clients))
        try:
            sums, done = self._train(work, chunk, meanwhile)
        except Exception as e:
            if not ran_out(e):
                raise
            raise no_room(self.setup, chunk, e) from e
        for clients, me in done:
            keep(self.table, clients, me)
        if meanwhile is not None and len(done) > 1:  # only now is it known which rows are on their way back
            meanwhile()
        return sums.outcome(len(work.clients))

    def _train(
        self, work: Work, chunk: int, meanwhile: Meanwhile | None
    ) -> tuple[Sums, list[tuple[list[int], Vectors]]]:
        """A round's sums, and what clients keep of it, not yet written; ``chunk`` clients at a time."""
        sums, done, whole = Sums(), [], chunk >= len(work.clients)
        for start in range(0, len(work.clients), chunk):
            lane = Lane(self, work, slice(start, start + chunk))
            (part,) = train([lane], meanwhile if whole else None)
            sums.add(part.up, part.loss, part.drift, part.moved)
            # Captured steps answer with views of buffers that the next chunk overwrites.
            done.append((lane.clients, part.me if whole else part.me.map(torch.clone)))
        return sums, done


def no_room(setup: Setup, chunk: int, why: Exception) -> FedsmooError:
    """Memory ran out: what to set. Not tried here, because the number of clients at once decides the last bits."""
    place = f"the memory of {setup.task.device}"
    if chunk == 1:
        advice = "use a smaller batch_size or model, or a device with more memory"
        return FedsmooError(f"not even one client fits in {place}: {advice} ({first_line(why)})")
    advice = f"set chunk={(chunk + 1) // 2}, which trains fewer at once, or end what else uses it"
    return FedsmooError(f"{chunk} clients at once do not fit in {place}: {advice} ({first_line(why)})")


def keep(table: ClientTable, clients: list[int], me: Vectors) -> None:
    """Write rows; if memory runs out meanwhile, again after giving back what can be: the same rows are the same."""
    try:
        table.write(clients, me)
    except torch.OutOfMemoryError:
        release()
        table.write(clients, me)


def run_packed(engines: Sequence[Batched], works: Sequence[Work], meanwhile: Meanwhile | None = None) -> list[Outcome]:
    """One round of several runs in one batch of clients; all engines share the first one's oracle and steps."""
    lanes = [Lane(e, w, slice(0, len(w.clients))) for e, w in zip(engines, works, strict=True)]
    first, clients = engines[0], sum(len(w.clients) for w in works)
    if first.fits < clients:
        raise FedsmooError(
            f"{len(works)} runs of {clients} clients in all do not fit in the memory of {first.setup.task.device} at "
            f"once ({first.fits} clients do): put fewer runs in a batch"
        )
    results = train(lanes, meanwhile)
    for lane, part in zip(lanes, results, strict=True):
        keep(lane.engine.table, lane.clients, part.me)
    outcomes = []
    for lane, part in zip(lanes, results, strict=True):
        sums = Sums()
        sums.add(part.up, part.loss, part.drift, part.moved)
        outcomes.append(sums.outcome(len(lane.clients)))
    return outcomes


class Part(NamedTuple):
    """What a lane's clients keep, the weighted sum of what they sent, and sums of losses, drifts and paths."""

    me: Vectors
    up: Vectors
    loss: Tensor
    drift: Tensor
    moved: Tensor


def train(lanes: Sequence[Lane], meanwhile: Meanwhile | None = None) -> list[Part]:
    """The round of the clients of all lanes."""
    setup = lanes[0].engine.setup
    task, counts = setup.task, [len(lane.clients) for lane in lanes]
    lanes[0].engine.oracle.task.model.train()  # which may be another run's: one oracle serves them all
    plan = merge([lane.work.plan.select(lane.part) for lane in lanes])
    stage = make_stage(lanes, counts)
    own = concatenate([_own(lane) for lane in lanes])
    zero = torch.zeros((), dtype=task.dtype, device=task.device).expand(sum(counts), task.model.layout.size)
    me = own.replace(**dict.fromkeys(stage.algorithm.local, zero))
    w = stage.algorithm.start(stage.down, me).expand_as(zero)
    step = lanes[0].engine.steps
    w, me, total = step(stage, w, me, DevicePlan(plan, task), meanwhile)
    steps = torch.from_numpy(plan.steps).to(task.device, task.dtype)[:, None]
    share = lanes[0].work.share if len(lanes) == 1 else per_client([lane.work.share for lane in lanes], counts, zero)
    numbers = [lane.work.number for lane in lanes]  # reopened runs may be at different rounds
    number = numbers[0] if len(set(numbers)) == 1 else per_client(numbers, counts, zero)
    end = step.end if isinstance(step, GraphSteps) else plain_end
    me, up, drift = end(stage, w, me, Round(number, stage.lr, steps, share))
    loss = total / steps[:, 0]
    out, start = [], 0
    for lane, n in zip(lanes, counts, strict=True):
        rows = slice(start, start + n)
        weights = torch.tensor(lane.work.weights[lane.part], dtype=w.dtype, device=w.device)
        mine = me.map(itemgetter(rows))
        sent = up.map(itemgetter(rows)).map(partial(torch.matmul, weights))
        moved = w[rows].sum(0) - n * lane.work.down.w
        out.append(Part(mine, sent, loss[rows].sum(), drift[rows].sum(), moved))
        start += n
    return out


def _own(lane: Lane) -> Vectors:
    return lane.engine.table.read(lane.clients, lane.engine.setup.algorithm.first_contact(lane.work.down))


def make_stage(lanes: Sequence[Lane], counts: Sequence[int]) -> Stage:
    """One run's own objects; for several runs, their numbers and sent vectors repeated for each client."""
    if len(lanes) == 1:
        setup, work = lanes[0].engine.setup, lanes[0].work
        varies = work.varies or counts[0] < len(work.clients)  # chunks may end in a shorter one
        return Stage(setup.algorithm, setup.rule, work.down, work.lr, (id(setup),), varies)
    like = lanes[0].work.down.w
    rows = [lane.work.down.map(methodcaller("expand", n, -1)) for lane, n in zip(lanes, counts, strict=True)]
    algorithm = stack_algorithms([lane.engine.setup.algorithm for lane in lanes], counts, like)
    rule = stack_rules([lane.engine.setup.rule for lane in lanes], counts, like)
    lr = per_client([lane.work.lr for lane in lanes], counts, like)
    return Stage(algorithm, rule, concatenate(rows), lr, tuple(id(lane.engine.setup) for lane in lanes))


def per_client(values: Sequence[float], counts: Sequence[int], like: Tensor) -> Tensor:
    """A number per run as a number per client, ``[C, 1]``."""
    repeated = [v for v, n in zip(values, counts, strict=True) for _ in range(n)]
    return torch.tensor(repeated, dtype=like.dtype, device=like.device)[:, None]


def concatenate(parts: Sequence[Vectors]) -> Vectors:
    """Vectors of several runs, one below the other."""
    if len(parts) == 1:
        return parts[0]
    return Vectors(**{n: torch.cat([getattr(p, n) for p in parts]) for n in parts[0].names()})
