"""Runs in one batch are the runs alone: their own data, their own round numbers, room for all; and rounds that run out
of memory are applied once."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from patience import wait_for

from fedsmoo.algorithms import FedAvg
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines import batched
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.client_state import tiers
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.steps.replay import Recording
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.sweeps import pack as packs
from fedsmoo.sweeps.pack import Pack, assemble_pack, packable

from .small import on_engine, recorded

BASE = {
    "model": "softmax", "rounds": 4, "clients": 10, "cohort": 3, "local_steps": 2, "device": "cpu", "engine": "batched",
    "dtype": "float64",
}  # fmt: skip


def gap(a, b) -> float:
    return float((a.server.w - b.server.w).norm())


def test_seeds_of_drawn_data_do_not_share_a_batch():
    configs = [Config(**BASE, dataset="synthetic(0.5,0.5)", seed=s) for s in (0, 1)]
    assert not packable(configs)
    assert packable([c.replace(seed=0, lr=0.1 * (i + 1)) for i, c in enumerate(configs)])
    assert packable([c.replace(dataset="digits") for c in configs])


def test_a_chunk_bounds_all_clients_of_a_batch():
    assert not packable([Config(**BASE, chunk=5, seed=s) for s in (0, 1)])
    assert packable([Config(**BASE, chunk=6, seed=s) for s in (0, 1)])


def test_runs_that_do_not_fit_together_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(batched, "clients_that_fit", lambda setup, batch_size: 5)
    with pytest.raises(FedsmooError, match="2 runs of 6 clients in all do not fit"):
        Pack(assemble_pack([Config(**BASE, seed=s) for s in (0, 1)])).run()


def test_client_state_of_all_runs_must_fit(monkeypatch):
    """Room for the rows of one run and a half: two runs go to the disk, one alone stays."""
    configs = [Config(**BASE, algorithm="scaffold", seed=s) for s in (0, 1)]
    alone = assemble(configs[0])
    rows = tiers.row_bytes(alone.setup) * 10
    room = int((1.5 * rows + 2 * 3 * packs.bytes_per_client(alone.setup)) / 0.8)
    monkeypatch.setattr(tiers, "available_bytes", lambda device: room)
    assert type(assemble(configs[0]).engine.table) is ClientTable
    assert all(isinstance(s.engine.table, tiers.StoredTable) for s in assemble_pack(configs))


@dataclass(frozen=True)
class Fading(FedAvg):
    """Reads the round's number."""

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=down.w + (w - down.w) / (1 + rnd.number))


def test_runs_at_different_rounds_keep_their_numbers():
    alone, together = ([assemble(Config(**BASE, seed=s), algorithm=Fading()) for s in (0, 1)] for _ in range(2))
    for run in alone:
        run.run()
    together[0].advance()
    together[0].advance()
    Pack(together).run()
    assert all(gap(a, b) < 1e-12 for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("different", ["weight_decay", "r"])
def test_the_others_go_on_recorded_when_a_run_leaves(different):
    def config(i: int) -> Config:
        if different == "r":
            return Config(**BASE, algorithm="fedsmoo", algorithm_options={"r": 0.1 * (i + 1)})
        return Config(**BASE, algorithm="fedavg", weight_decay=0.01 * (i + 1))

    alone = [assemble(config(i)) for i in range(3)]
    for run in alone:
        run.run()
    runs = assemble_pack([config(i) for i in range(3)])
    runs[0] = on_engine(runs[0], Batched(runs[0].setup, stepper=recorded))
    Pack(runs).run([None, None, lambda record: record.round < 2])
    assert all(run.engine.stepper is runs[0].engine.stepper for run in runs)
    assert runs[0].engine.stepper.capture
    assert gap(alone[0], runs[0]) < 1e-12
    assert gap(alone[1], runs[1]) < 1e-12


def test_models_that_hold_other_tensors_do_not_share_a_batch():
    """Plain tensors in a module are no parameters: a batch would train every run with the first one's."""

    class Projected(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.project = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))
            self.last = torch.nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x.flatten(1) @ self.project)

    config = Config(**BASE | {"engine": "vmap", "dtype": "float32"}, algorithm="fedavg")
    Pack([assemble(config.replace(seed=s), model=FlatModel(Projected(3))) for s in range(2)])
    with pytest.raises(FedsmooError, match=r"tensors in their models that are no parameters.*--pack 1"):
        Pack([assemble(config.replace(seed=s), model=FlatModel(Projected(s))) for s in range(2)])


def test_runs_in_one_batch_have_one_engine():
    config = Config(**BASE, algorithm="fedavg")
    runs = [assemble(config), assemble(config.replace(seed=1, engine="vmap"))]
    assert [r.engine.name for r in Pack(runs).simulations] == ["batched", "batched"]


def test_buffers_for_other_sizes_of_cohort_make_room(monkeypatch):
    """Memory for 40 clients' buffers; no cohort has more than 16: nothing is trained in smaller parts for good."""
    config = Config(**BASE | {"clients": 40, "cohort": 10, "rounds": 20}, sampling="bernoulli", algorithm="fedavg")
    run = assemble(config)
    run = on_engine(run, Batched(run.setup, stepper=recorded))
    begin, refused, forgotten = Recording.__init__, [], []

    def limited(self, oracles, given, me, plan, shape):
        if sum(len(r.rows.w) for r in run.engine.stepper.recordings.values()) + shape.room > 40:
            refused.append(shape.room)
            raise torch.OutOfMemoryError("CUDA out of memory")
        begin(self, oracles, given, me, plan, shape)

    monkeypatch.setattr(Recording, "__init__", limited)
    monkeypatch.setattr(type(run.engine.oracle), "free_buffers", lambda self: forgotten.append(self), raising=False)
    run.run()
    assert refused
    assert len(forgotten) == len(refused)
    assert run.engine.clients_at_once == run.engine.capacity


def test_memory_that_runs_out_while_rows_are_kept_does_not_apply_a_round_twice(monkeypatch):
    config = Config(**BASE | {"cohort": 6}, algorithm="fedsmoo")
    right = assemble(config)
    right.run()
    write, calls = ClientTable.write, []

    def failing(self, clients, me):
        calls.append(clients)
        if len(calls) == 3:
            write(self, clients[:2], me)
            raise torch.OutOfMemoryError("CUDA out of memory")
        write(self, clients, me)

    monkeypatch.setattr(ClientTable, "write", failing)
    run = assemble(config)
    run.run()
    assert len(calls) == 5
    assert gap(right, run) == 0


def test_auto_tries_methods_that_divide_by_the_learning_rate():
    @dataclass(frozen=True)
    class PerRate(FedAvg):
        def finish(self, w, down, me, rnd):
            return me, Vectors(w=down.w + (w - down.w) * (1.0 / rnd.lr) * rnd.lr)

    run = assemble(Config(**BASE | {"engine": "auto"}), algorithm=PerRate())
    run.run()
    assert torch.isfinite(run.server.w).all()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_finished_runs_disk_table_gives_its_file_back():
    def open_files() -> int:
        links = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
        return sum("fedsmoo-clients-" in os.readlink(link) for link in links if os.path.islink(link))

    gc.collect()  # what earlier tests left may hold such files
    before = open_files()
    run = assemble(Config(**BASE, algorithm="scaffold", table="disk"))
    run.run()
    assert open_files() > before
    del run

    def given_back() -> bool:  # a thread may still be writing rows back, and keeps the table until then
        gc.collect()
        return open_files() == before

    wait_for(given_back, "the file of the table to be closed")
