"""Client state outside the device: the same bits, whatever is fetched ahead, and clear words where nothing fits."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from patience import PATIENCE

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state import tiers
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.client_state.tiers import CopyStreams, StoredTable, disk_rows, first_that_fits
from fedsmoo.engines.threads import Threads
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config

GB = 10**9
BASE = Config(
    dataset="digits", model="softmax", algorithm="fedsmoo", clients=12, cohort=5, rounds=8, local_steps=2,
    batch_size=8, device="cpu", engine="batched",
)  # fmt: skip


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("method", ["fedsmoo", "scaffold", "fedlesam-d", "fedavg"])
def test_a_run_with_rows_on_disk_has_the_same_bits(method: str, chunk: int | None) -> None:
    config = BASE.replace(algorithm=method, chunk=chunk)
    plain, stored = assemble(config).run(), assemble(config.replace(table="disk")).run()
    assert torch.equal(plain.server.w, stored.server.w)
    tables = [dict(r.simulation.engine.table.items()) for r in (plain, stored)]
    assert tables[0].keys() == tables[1].keys()
    for i in tables[0]:
        assert all(torch.equal(tables[0][i][n], tables[1][i][n]) for n in tables[0][i])


def rows_in_memory(names: tuple[str, ...]) -> Callable[[int], dict[str, torch.Tensor]]:
    return lambda i: {n: torch.empty(3) for n in names}


def test_prefetched_rows_are_never_stale() -> None:
    """Against a plain table, with cohorts that overlap in every way and a hint that is sometimes wrong."""
    plain, stored = ClientTable(("a", "b")), StoredTable(("a", "b"), torch.device("cpu"), rows_in_memory(("a", "b")))
    first = Vectors(a=torch.full((3,), 7.0), b=torch.zeros(3))
    cohorts = [[0, 1], [1, 2], [0, 1, 2], [3], [3], [0, 3], [4, 2], [2, 4]]
    for t, cohort in enumerate(cohorts):
        rows = [table.read(cohort, first) for table in (plain, stored)]
        for n in ("a", "b"):
            assert torch.equal(getattr(rows[0], n), getattr(rows[1], n))
        hinted = cohorts[(t + 1) % len(cohorts)] if t % 3 else [0, 1, 2, 3, 4]
        stored.prefetch(hinted)
        new = rows[0].map(lambda v, t=t: v * 0.5 + t)
        for table in (plain, stored):
            table.write(cohort, new)
    assert plain.take_changes() == stored.take_changes() == {0, 1, 2, 3, 4}


def test_a_row_that_is_being_trained_is_not_fetched_ahead() -> None:
    """Another write comes between, so that the row is read from the store and not from what was written last."""
    table = StoredTable(("a",), torch.device("cpu"), rows_in_memory(("a",)))
    first = Vectors(a=torch.zeros(3))
    table.write([0, 1], Vectors(a=torch.tensor([[1.0] * 3, [2.0] * 3])))
    table.read([0], first)
    table.prefetch([0, 1])
    table.reader.submit(lambda: None).result()  # what was fetched ahead has arrived before the row changes
    table.write([0], Vectors(a=torch.full((1, 3), 10.0)))
    table.write([5], Vectors(a=torch.full((1, 3), 50.0)))
    assert table.read([0, 1, 5], first).a[:, 0].tolist() == [10.0, 2.0, 50.0]


@pytest.mark.parametrize("change", ["write", "load"])
@pytest.mark.parametrize("read", [[0, 1], [1], []], ids=["all", "some", "none"])
def test_a_row_that_changes_after_it_was_fetched_ahead_is_read_anew(read: list[int], change: str) -> None:
    """As where clients are read and written one by one, and the next round is made ready in between."""
    table = StoredTable(("a",), torch.device("cpu"), rows_in_memory(("a",)))
    first = Vectors(a=torch.zeros(3))
    table.write([0, 1, 2], Vectors(a=torch.tensor([[1.0] * 3, [2.0] * 3, [3.0] * 3])))
    table.write([5], Vectors(a=torch.full((1, 3), 50.0)))
    for i in read:
        table.read([i], first)
    table.prefetch([0, 1, 2])
    table.reader.submit(lambda: None).result()  # what was fetched ahead has arrived before rows change
    for i, value in ((0, 10.0), (1, 20.0)):
        if change == "write":
            table.write([i], Vectors(a=torch.full((1, 3), value)))
        else:
            table.load(i, {"a": torch.full((3,), value)})
    assert table.read([0, 1, 2, 5], first).a[:, 0].tolist() == [10.0, 20.0, 3.0, 50.0]


@pytest.mark.parametrize("threads", [1, 3, 4, 7])
def test_clients_in_threads_read_their_rows_from_disk_as_from_memory(threads: int) -> None:
    """Cohorts of 4 out of 5 overlap in nearly all of their clients, who are read and written one by one."""
    config = BASE.replace(algorithm="scaffold", clients=5, cohort=4, engine="threads")
    plain, stored = assemble(config), assemble(config.replace(table="disk"))
    for run in (plain, stored):
        assert isinstance(run.engine, Threads)
        run.engine = Threads(run.setup, run.engine.table, threads=threads)
    assert isinstance(stored.engine.table, StoredTable)
    assert torch.equal(plain.run().server.w, stored.run().server.w)


def test_a_loaded_row_replaces_a_fresh_one() -> None:
    table = StoredTable(("a",), torch.device("cpu"), rows_in_memory(("a",)))
    first = Vectors(a=torch.zeros(3))
    table.write([5], Vectors(a=torch.ones(1, 3)))
    table.load(5, {"a": torch.full((3,), 2.0)})
    assert table.read([5], first).a.tolist() == [[2.0, 2.0, 2.0]]


def test_an_error_of_the_writer_is_not_lost() -> None:
    def broken(i: int) -> dict[str, torch.Tensor]:
        return {"a": torch.empty(4)}  # of the wrong size: the copy fails in the writer's thread

    table = StoredTable(("a",), torch.device("cpu"), broken)
    table.write([0], Vectors(a=torch.ones(1, 3)))
    with pytest.raises(RuntimeError):
        list(table.items())


def test_rows_never_met_take_no_disk() -> None:
    make_row = disk_rows({"mu": 1000, "n": 1, "lam": 1000}, torch.float32, clients=1_000_000)  # 8 GB else
    row = make_row(999_999)
    row["lam"].fill_(3.0)
    row["n"].fill_(5.0)
    assert make_row(999_999)["lam"].sum() == 3000
    assert make_row(999_999)["n"].tolist() == [5.0]
    assert make_row(999_999)["mu"].sum() == 0
    assert make_row(0)["mu"].sum() == 0


def test_the_first_tier_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    room = {"cuda": 100 * GB, "cpu": 50 * GB, "disk": 400 * GB}
    monkeypatch.setattr(tiers, "available_bytes", lambda device: room[device.type])
    monkeypatch.setattr(tiers, "free_disk", lambda: room["disk"])
    gpu = torch.device("cuda")
    assert first_that_fits(10 * GB, 10 * GB, gpu) == "device"
    room["cuda"] = 20 * GB
    assert first_that_fits(10 * GB, 10 * GB, gpu) == "host"
    assert first_that_fits(200 * GB, 10 * GB, gpu) == "disk"
    with pytest.raises(FedsmooError, match=rf"need 900.0 GB.*{tempfile.gettempdir()}.*fewer clients"):
        first_that_fits(900 * GB, 10 * GB, gpu)


def test_a_million_clients_cost_only_those_met() -> None:
    pool = np.arange(1438)
    indices = [pool[i % 1400 : i % 1400 + 10] for i in range(1_000_000)]
    config = BASE.replace(model="mlp", clients=1_000_000, cohort=100, rounds=3, local_steps=1)
    result = assemble(config, indices=indices).run()
    met = dict(result.simulation.engine.table.items())
    assert met.keys() == {i for r in result.history for i in r.cohort}
    assert 290 <= len(met) <= 300


def test_a_run_says_what_it_will_need() -> None:
    run = assemble(BASE.replace(cohort=5, rounds=2))
    size = run.setup.task.model.layout.size * 4
    total, text = tiers.memory_estimate(run.setup, run.engine.table, 12, 5, 2)
    # At most 10 clients are met, with two vectors each; in a round 5 have own, local and sent ones and working copies.
    vectors = 2 * 2 + 2 * 1 + 2 + 5
    assert total == 10 * 2 * size + 5 * vectors * size
    assert "on cpu" in text
    assert tiers.memory_estimate(run.setup, run.engine.table, 12, 5, 100)[0] == 12 * 2 * size + 5 * vectors * size


def test_rows_are_whole_before_anybody_sees_them() -> None:
    """The copy to the host waits until somebody asks for the rows."""
    asked, cpu = threading.Event(), torch.device("cpu")

    class Late(CopyStreams):
        def to_host(self, block):
            host = super().to_host(block)
            return lambda: asked.wait(PATIENCE) and host()

    class Asking(StoredTable):
        def _saved(self, client):
            if client in self.saving:
                asked.set()
            super()._saved(client)

    table = Asking(("a",), cpu, lambda i: {"a": torch.full((3,), -1.0)}, Late(cpu))
    table.write([4, 2], Vectors(a=torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])))
    found = dict(table.items())
    asked.set()
    assert {i: row["a"].tolist() for i, row in found.items()} == {2: [4.0, 5.0, 6.0], 4: [1.0, 2.0, 3.0]}
    table.load(2, {"a": torch.zeros(3)})
    assert table.read([2], Vectors(a=torch.ones(3))).a.tolist() == [[0.0, 0.0, 0.0]]
