"""Nothing of where a vector lies in memory, or of how much memory is free, shows in what a resumed run computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsmoo.core import Vectors
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.table import ClientTable
from fedsmoo.experiment.checkpoint import Checkpoints, Mark, newest
from fedsmoo.experiment.conduct import Run
from fedsmoo.experiment.config import Config
from fedsmoo.experiment.loop import Simulation
from fedsmoo.experiment.resolve import assemble

SIZES = (1, 3, 5, 9, 14, 20, 27, 33)
TASK = Config(
    model="mlp", dtype="float64", engine="batched", device="cpu", rounds=6, cohort=2, local_steps=1, batch_size=10,
    lr=0.05, clip=0.5,
)  # fmt: skip


def small(config: Config) -> Simulation:
    """Eight clients with as many samples as ``SIZES`` says, of six numbers in three classes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((160, 6))
    y = (x @ rng.standard_normal((6, 3))).argmax(1)
    ends = np.cumsum(SIZES)
    clients = [np.arange(e - n, e) for n, e in zip(SIZES, ends, strict=True)]
    return assemble(config, data=from_arrays(x, y, x[:40], y[:40]), indices=clients)


def state(simulation: Simulation) -> dict[str, Tensor]:
    rows = {f"{i}.{n}": v for i, row in simulation.engine.table.items() for n, v in row.items()}
    return {**dict(simulation.server.items()), **rows}


def stop_and_go_on(config: Config, folder: Path, after: int) -> Simulation:
    seen: list[int] = []
    Run.begin(config, folder, small(config)).go(lambda r: seen.append(r.round), lambda: len(seen) == after)
    run = Run.reopen(folder, simulation=small(config))
    assert len(run.simulation.history) == after
    run.go()
    return run.simulation


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fedsmoo"])
def test_a_resumed_run_has_the_same_bits_in_double_precision(method: str, tmp_path: Path) -> None:
    for seed in range(3):
        config = TASK.replace(algorithm=method, seed=seed)
        whole = small(config)
        whole.run()
        for after in (1, 4):
            resumed = state(stop_and_go_on(config, tmp_path / f"{seed}-{after}", after))
            expected = state(whole)
            assert resumed.keys() == expected.keys()
            assert [n for n in expected if not torch.equal(resumed[n], expected[n])] == []


def test_restored_vectors_start_where_fresh_ones_do(tmp_path: Path) -> None:
    """However long the header of their file and the vectors before them are."""
    for size in range(1, 20):
        vectors = {n: torch.rand(size, dtype=torch.float64) for n in ("w", "a", "longer")}
        table = ClientTable(("mu",))
        table.write([0, 7, 11], Vectors(mu=torch.rand(3, size, dtype=torch.float64)))
        Checkpoints(tmp_path / str(size), {}).save(1, Vectors(**vectors), table, Mark(0, ""))
        saved = newest(tmp_path / str(size))[0]
        assert saved is not None
        restored = [v for _, v in saved.server().items()] + [row["mu"] for _, row in saved.rows()]
        assert [v.data_ptr() % 64 for v in restored] == [torch.rand(size).data_ptr() % 64] * len(restored)
