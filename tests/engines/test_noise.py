"""What methods draw: the streams of a seed, round, client, name and step, and nothing that has to be saved."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import fedsmoo
from fedsmoo.algorithms import FedAvg
from fedsmoo.core import FedsmooError, Round, Vectors
from fedsmoo.core.random.noise import MASK, Noise, key_of
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.testing import check_algorithm

from .small import SEED, simulation
from .told import Noisy

MINE = """
from dataclasses import dataclass
from fedsmoo import FedAvg, Vectors

@dataclass(frozen=True)
class Noisy(FedAvg):
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w + 0.01 * rnd.normal("reply", w))

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w + 0.01 * rnd.uniform("server", srv.w))
"""
SMALL = {"model": "softmax", "rounds": 4, "clients": 6, "cohort": 3, "local_steps": 2, "device": "cpu"}


@dataclass(frozen=True)
class Only(FedAvg):
    """Sends nothing but noise: of its last step, and of the end."""

    local = ("last",)

    def update(self, w, d, me, rnd):
        return w, me.replace(last=rnd.uniform("step", w))

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=me.last + rnd.normal("reply", w))

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w + rnd.normal("reply", srv.w))


@pytest.mark.parametrize("kind", ["serial", "hand", "vmap", "recorded"])
def test_noise_is_that_of_the_seed_the_round_the_client_the_name_and_the_step(kind: str) -> None:
    run = simulation(kind, "softmax", Only(), sampling="uniform")
    for number in range(2):
        record, size = run.advance(), torch.empty(run.server.w.numel(), dtype=torch.float64)
        steps = run.plan(number, record.cohort).steps
        expected = torch.zeros_like(size)
        for i, k in zip(record.cohort, steps, strict=True):
            key = key_of(SEED, "noise", number, i)
            expected += Noise(key, int(k) - 1).uniform("method step", size)
            expected += Noise(key, MASK).normal("method reply", size)
        server = Noise(key_of(SEED, "noise of the server", number), MASK).normal("method reply", size)
        assert float((run.server.w - expected / len(steps) - server).abs().max()) < 1e-12


def test_a_method_with_noise_is_resumed_and_repeated_to_the_bit(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    config = Config(**SMALL, algorithm="mine.py:Noisy")
    whole = fedsmoo.run(config, tmp_path / "whole")
    fedsmoo.run(config, tmp_path / "cut", callback=lambda r: r.round < 2)
    assert torch.equal(fedsmoo.resume(tmp_path / "cut").server.w, whole.server.w)
    assert torch.equal(assemble(config).run().server.w, whole.server.w)
    assert not torch.equal(assemble(config.replace(seed=1)).run().server.w, whole.server.w)


def test_the_contract_takes_noise_that_is_drawn_so() -> None:
    check_algorithm(Noisy())
    with pytest.raises(FedsmooError, match="this Round has no key"):
        Round(0, 0.1, 1, 1.0).normal("x", torch.zeros(3))
