"""Means over clients of unequal size: of vectors, of single numbers and of steps, against a literal sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo.core import Vectors
from fedsmoo.core.server import mean_steps
from fedsmoo.engines.serial import train_client
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.traffic import ledger, paper_vectors, round_bytes
from fedsmoo.sweeps.pack import Pack, assemble_pack

FEDNOVA = f"{Path(__file__).parents[1] / 'fednova.py'}:FedNova"
SMALL = Config(
    algorithm=FEDNOVA, dataset="synthetic", partition="natural", clients=30, model="softmax", cohort=3, rounds=1,
    local_epochs=2, batch_size=16, lr=0.01, dtype="float64", device="cpu", engine="serial",
)  # fmt: skip
P = 60 * 10 + 10


def literal(config: Config) -> tuple[torch.Tensor, float]:
    """The model after a round and the mean of the steps, summed client by client."""
    run = assemble(config)
    work, w = run.prepare(), run.server.w
    sizes = [len(run.indices[i]) if config.weighted else 1 for i in work.clients]
    steps = [2 * -(-len(run.indices[i]) // 16) for i in work.clients]
    assert len(set(steps)) == len(steps)  # unequal clients
    total, mean = torch.zeros_like(w), sum(n * k for n, k in zip(sizes, steps, strict=True)) / sum(sizes)
    for c, (n, k) in enumerate(zip(sizes, steps, strict=True)):
        end, *_ = train_client(run.setup, work.down, Vectors(), work.plan.select(slice(c, c + 1)), work.round_of(c))
        total += n / sum(sizes) * (end - w) / k
    return w + mean * total, mean


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("engine", ["serial", "batched", "vmap"])
def test_numbers_and_steps_are_weighted_as_vectors_are(engine: str, weighted: bool) -> None:
    config = SMALL.replace(weighted=weighted)
    w, mean = literal(config)
    server = assemble(config.replace(engine=engine)).run().server
    assert server.k.shape == server.steps.shape == (1,)
    assert [server.k.item(), server.steps.item()] == pytest.approx([mean, mean], rel=1e-14)
    torch.testing.assert_close(server.w, w, rtol=0, atol=1e-12)


def test_the_means_differ_here() -> None:
    assert abs(literal(SMALL)[1] - literal(SMALL.replace(weighted=True))[1]) > 1


def test_runs_that_share_a_batch_have_their_own_means() -> None:
    configs = [SMALL.replace(weighted=True, engine="batched", rounds=2, lr=lr) for lr in (0.01, 0.02)]
    for packed, config in zip(Pack(assemble_pack(configs)).run(), configs, strict=True):
        for name, v in assemble(config).run().server.items():
            torch.testing.assert_close(getattr(packed.server, name), v, rtol=0, atol=1e-12)


def test_equal_weights_keep_the_bits_of_the_plain_mean() -> None:
    for n in range(1, 50):
        steps = np.random.default_rng(n).integers(1, 999, n)
        assert mean_steps(steps, [1 / n] * n) == float(steps.mean())


@pytest.mark.parametrize(("wire", "vector"), [("exact", 4 * P), ("fp16", 2 * P), ("int8", P + 2 * 3)])
def test_a_single_number_costs_four_bytes(wire: str, vector: int) -> None:
    run = assemble(SMALL.replace(dtype="float32", wire=wire, engine="batched"))
    record, algorithm = run.advance(), run.setup.algorithm
    assert (record.bytes_up, record.bytes_down) == (3 * (vector + 4), 3 * vector)
    assert round_bytes(algorithm, P, torch.float64, [0])[0] - round_bytes(algorithm, P, torch.float32, [0])[0] == (
        4 * P + 4 if wire == "exact" else 4
    )
    book = ledger(algorithm, [record], P, 2 * P)
    assert (book.vectors_up, book.vectors_down, paper_vectors(algorithm)) == (1, 1, 2)
    if wire == "exact":
        assert book.bytes_full == 3 * (2 * 2 * vector + 4)  # the number is not of the model


def test_a_method_may_pack_its_vectors_tighter() -> None:
    class TopTen(type(assemble(SMALL).setup.algorithm)):  # type: ignore[misc]
        def bytes_of(self, name: str, numbers: int, width: int) -> int:
            return 10 * (width + 4) if name == "d" else super().bytes_of(name, numbers, width)

    assert round_bytes(TopTen(), P, torch.float32, [0, 1]) == (2 * (10 * 8 + 4), 2 * 4 * P)
