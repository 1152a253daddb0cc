"""The engine that divides a cohort over the ranks of ``torch.distributed`` and all-reduces what clients send.

Every rank draws the same cohort from the same stream, trains its own clients with an inner engine, and adds its part
to one fused all-reduce of ``len(up) * P + 2`` numbers (the weighted sums of ``up``, the loss and the drift). What
follows, ``aggregate`` first, is computed alike on every rank from the same bits, so nothing else has to travel but a
number for the drift after it. Of a method whose server sees clients one by one, every rank gathers all rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.choose import make_engine
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Contribution, Engine, Meanwhile, RoundInputs, RoundOutcome, Setup, Sums
from fedsmoo.engines.distributed.launcher import launched
from fedsmoo.engines.distributed.ranks import Ended, Ranks, abandon_job, join
from fedsmoo.engines.distributed.same import facts_of, refuse_others
from fedsmoo.engines.personal import PersonalInputs
from fedsmoo.engines.task import Samples
from fedsmoo.metrics.tally import Scores


def owners(clients: Sequence[int], world: int, stateful: bool) -> list[int]:
    """Return the rank that trains each client of a cohort.

    A client that keeps vectors between rounds belongs to rank ``client % world`` for good, so a cohort's shares differ
    by chance; clients that keep nothing are dealt out evenly, in blocks of the cohort.

    >>> owners([1, 4, 5, 9], 2, stateful=True), owners([1, 4, 5, 9], 2, stateful=False)
    ([1, 0, 1, 1], [0, 0, 1, 1])
    """
    if stateful:
        return [i % world for i in clients]
    return [c * world // len(clients) for c in range(len(clients))]


def part_of(inputs: RoundInputs, positions: list[int]) -> RoundInputs:
    """Return the inputs of some clients of the cohort, with their weights as they are."""
    return dataclasses.replace(
        inputs,
        clients=[inputs.clients[c] for c in positions],
        weights=[inputs.weights[c] for c in positions],
        plan=inputs.plan.select(np.array(positions)),  # type: ignore[arg-type]  # an index list cuts like a slice
        facts=inputs.facts_of(positions),
    )


def engine_for(
    name: str,
    setup: Setup,
    chunk: int | None,
    cohort: int,
    batch_size: int,
    same_bits: bool = False,
    table: ClientTable | None = None,
) -> Engine:
    """Make the engine of a run, wrapped in :class:`Distributed` where a launcher started several ranks.

    With ``same_bits`` (the setting ``exact``), clients are trained one at a time (by ``serial``, unless another engine
    is named), so that the bits do not depend on how they are divided.
    """
    if same_bits:
        name, chunk = "serial" if name == "auto" else name, 1
    if not launched():
        return make_engine(name, setup, chunk, cohort, batch_size, table)
    ranks = join(setup.task.device)
    share = -(-cohort // ranks.world)
    # A rule chooses the same engine on every rank.
    return Distributed(setup, make_engine(name, setup, chunk, share, batch_size, table), ranks, same_bits)


class Distributed(Engine):
    """The engine of several processes around an engine of one.

    ``same_bits`` trains client by client and adds what they send in the order of the cohort, so that the result has the
    same bits with any number of ranks, and those of ``serial`` if that is the inner engine. It costs the inner
    engine's batching, and n broadcasts of ``(len(up) + 1) * P`` numbers a round instead of one all-reduce.

    Rank 0 leads: a round starts on the others when it starts there, and until then they answer rank 0's questions about
    the client table. So the code that saves a run is the same for one process and for several.
    """

    def __init__(self, setup: Setup, inner: Engine, ranks: Ranks, same_bits: bool = False) -> None:
        self.setup, self.inner, self.ranks, self.same_bits = setup, inner, ranks, same_bits
        self.name = inner.name
        self.compared = False  # whether the ranks have been found to have the same
        size, a = setup.task.model.layout.size, setup.algorithm
        self.sizes, self.rows = ({n: a.length(n, size) for n in names} for names in (a.summed, a.rows))
        like = torch.zeros(size, dtype=setup.task.dtype, device=setup.task.device)
        row = Vectors(**{n: setup.algorithm.zeros(n, like) for n in inner.table.names})
        self.table = self.sharded = ShardedTable(inner.table, ranks, row)

    @property
    def why(self) -> str:
        return self.inner.why

    @property
    def clients_at_once(self) -> int | None:
        """How many clients this rank trains at once."""
        return self.inner.clients_at_once

    def pin(self, clients_at_once: int | None = None, why: str | None = None) -> None:
        self.inner.pin(clients_at_once, why)

    def evaluate(self, w: Tensor, on: Samples | None = None) -> Scores:
        """Evaluate on every rank: it would wait for the others anyway."""
        return self.inner.evaluate(w, on)

    def personal(self, inputs: PersonalInputs) -> Tensor:
        """Evaluate on every rank the clients whose rows it has."""
        owner = owners(list(inputs.parts), self.ranks.world, stateful=True)
        mine = [r == self.ranks.rank for r in owner]
        found = torch.zeros(len(mine), 2, dtype=torch.float64, device=inputs.w.device)
        try:
            if any(mine):
                some = inputs.of([i for i, here in zip(inputs.parts, mine, strict=True) if here])
                found[torch.tensor(mine)] = self.inner.personal(some).to(found.device)
            return self.ranks.all_reduce(found).cpu()
        except BaseException:
            abandon_job()  # ranks without a client of their own wait here
            raise

    def run_round(self, inputs: RoundInputs, meanwhile: Meanwhile | None = None) -> RoundOutcome:
        if self.compared:  # cohorts that follow from losses may differ later, on machines of several kinds
            clients = ", ".join(map(str, inputs.clients))
            self.sharded.agree(f"round {inputs.number + 1} at lr {inputs.lr:g} of clients {clients}")
        else:
            self.sharded.agree("round")
            self._compare(inputs)
        if meanwhile is not None:
            meanwhile()
        owner = owners(inputs.clients, self.ranks.world, stateful=bool(self.table.names))
        try:
            return (self._in_order if self.same_bits else self._summed)(inputs, owner)
        except BaseException:
            abandon_job()  # the others wait in the middle of a round, not for an end
            raise

    def _compare(self, inputs: RoundInputs) -> None:
        """Refuse to go on where a rank has other data, settings or vectors: nothing later would show that."""
        try:
            refuse_others(self.ranks.gather_objects(facts_of(self.setup, inputs)))
        except BaseException:
            abandon_job()
            raise
        self.compared = True

    def serve(self) -> None:
        with suppress(Ended):
            self.sharded.agree("end")

    def _summed(self, inputs: RoundInputs, owner: list[int]) -> RoundOutcome:
        """Add the ranks' partial sums by one all-reduce; a rank without a client adds zeros."""
        mine = [c for c, r in enumerate(owner) if r == self.ranks.rank]
        part = self._train(inputs, mine) if mine else self._nothing(inputs)
        mean, loss, drift = self._unpack(self.ranks.all_reduce(part.sums))
        n, rows = len(inputs.clients), self._gathered(part.rows, owner) if self.rows else None
        measured = torch.stack([loss, drift]).double() / n
        return RoundOutcome(mean, measured, n, part.moved, self.ranks.all_reduce, rows)

    def _gathered(self, mine: Tensor, owner: list[int]) -> Vectors:
        """Gather the rows of all ranks, and put them in the order of the cohort."""
        most = max(owner.count(r) for r in range(self.ranks.world))
        padded = torch.cat([mine, mine.new_zeros(most - len(mine), mine.shape[1])])
        each = self.ranks.all_gather(padded)
        at = [owner[:c].count(r) for c, r in enumerate(owner)]  # which of its rank's rows a client has
        return self._split(torch.stack([each[r][k] for r, k in zip(owner, at, strict=True)]), self.rows)

    def _in_order(self, inputs: RoundInputs, owner: list[int]) -> RoundOutcome:
        """Broadcast every client's own part and add them in the cohort's order."""
        mine = {c: self._train(inputs, [c]).whole() for c, r in enumerate(owner) if r == self.ranks.rank}
        sums, nothing = Sums(len(inputs.clients)), self._nothing(inputs, clients=1).whole()
        lengths = [inputs.down.w.shape[-1], sum(self.rows.values())]
        for c, r in enumerate(owner):
            v = self.ranks.broadcast(mine.pop(c, nothing), r)
            moved, row, rest = v.split([*lengths, len(v) - sum(lengths)])
            sums.add(Contribution(*self._unpack(rest), moved, self._split(row[None], self.rows)))
        return sums.outcome()

    def _train(self, inputs: RoundInputs, positions: list[int]) -> Part:
        """Train some clients of the cohort."""
        out = self.inner.run_round(part_of(inputs, positions))
        n, like = len(positions), inputs.down.w
        tail = torch.tensor([out.loss * n, out.drift * n], dtype=like.dtype, device=like.device)
        assert out.moved is not None
        rows = like.new_zeros(n, 0) if out.rows is None else torch.cat([v for _, v in out.rows.items()], 1)
        return Part(torch.cat([*(getattr(out.mean, name) for name in self.sizes), tail]), out.moved, rows)

    def _nothing(self, inputs: RoundInputs, clients: int = 0) -> Part:
        new = inputs.down.w.new_zeros
        rows = new(clients, sum(self.rows.values()))
        return Part(new(sum(self.sizes.values()) + 2), torch.zeros_like(inputs.down.w), rows)

    def _unpack(self, v: Tensor) -> tuple[Vectors, Tensor, Tensor]:
        loss, drift = v[-2], v[-1]
        return self._split(v[:-2], self.sizes), loss, drift

    def _split(self, v: Tensor, sizes: Mapping[str, int]) -> Vectors:
        parts = v.split([*sizes.values()], -1) if sizes else ()
        return Vectors(**dict(zip(sizes, parts, strict=True)))


class Part(NamedTuple):
    """What some clients add to a round: the sum of ``up`` with those of loss and drift, of w_i - w, and their rows."""

    sums: Tensor
    moved: Tensor
    rows: Tensor  # [C, all names of rows]

    def whole(self) -> Tensor:
        """Return it all as one vector, of one client."""
        return torch.cat([self.moved, self.rows[0], self.sums])


class ShardedTable(ClientTable):
    """The client table of a job: every row lies on one rank, and rank 0 can read them all, one at a time.

    Whoever calls :meth:`items` or :meth:`take_changes` on rank 0 needs no help: the other ranks answer while they wait
    for the next round. :meth:`load` keeps the rows of this rank only, so a job may go on with another number of ranks.
    """

    sharded = True

    def __init__(self, inner: ClientTable, ranks: Ranks, like: Vectors) -> None:
        super().__init__(inner.names)
        self.inner, self.ranks, self.like = inner, ranks, like  # like: vectors of the shape and dtype of a row's

    def agree(self, what: str, client: int | None = None) -> None:
        """On rank 0, announce what comes next; on others, answer rank 0's questions until it announces that.

        Raises:
            Ended: if rank 0 ended the job instead.
            FedsmooError: if rank 0 is somewhere else.
        """
        if self.ranks.rank == 0:
            self.ranks.broadcast_object((what, client))
            return
        while (said := self.ranks.broadcast_object(None)) != (what, client):
            match said:
                case ("clients", _):
                    self.ranks.union({i for i, _ in self.inner.items()})
                case ("changes", _):
                    self.ranks.union(self.inner.take_changes())
                case ("row", int(i)):
                    self._row(i)
                case ("end", _):
                    raise Ended
                case _:
                    raise FedsmooError(f"rank {self.ranks.rank} waits for {what!r}, but rank 0 is at {said[0]!r}")

    def read(self, clients: Sequence[int], first: Vectors) -> Vectors:
        return self.inner.read(clients, first)

    def write(self, clients: Sequence[int], me: Vectors) -> None:
        self.inner.write(clients, me)

    def take_changes(self) -> set[int]:
        self.agree("changes")
        return self.ranks.union(self.inner.take_changes())

    def items(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        self.agree("clients")
        for client in sorted(self.ranks.union({i for i, _ in self.inner.items()})):
            self.agree("row", client)
            yield client, self._row(client)

    def _row(self, client: int) -> dict[str, Tensor]:
        owner = client % self.ranks.world
        row = self.like
        if owner == self.ranks.rank:
            row = self.inner.read([client], row).map(lambda v: v[0])
        return {n: self.ranks.broadcast(v, owner) for n, v in row.items()}

    def load(self, client: int, row: dict[str, Tensor]) -> None:
        if client % self.ranks.world == self.ranks.rank:
            self.inner.load(client, row)
