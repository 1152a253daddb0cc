"""The ledger against a count of bytes that really pass between a server and its clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import Vectors
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.traffic import first_reached, ledger

SMALL = Config(
    model="softmax",
    clients=6,
    cohort=3,
    rounds=3,
    local_steps=2,
    batch_size=8,
    partition="iid",
    engine="serial",
    device="cpu",
)
# Vectors a client receives and sends in a round (the methods' own papers), and what Sun et al. count.
EXPECTED = {
    "scaffold": (2, 2, 4), "fedgamma": (2, 2, 4), "fedlesam-s": (2, 2, 4), "fedsmoo": (2, 2, 4),
    "fedcm": (2, 1, 4), "fedgmt": (2, 1, 4), "mofedsam": (2, 1, 4), "feddc": (2, 2, 4), "fedmoswa": (2, 2, 4),
}  # fmt: skip


class Post:
    """An engine that reaches its clients by bytes only, and counts them."""

    def __init__(self, inner) -> None:
        self.inner, self.table, self.name, self.evaluate = inner, inner.table, "post", inner.evaluate
        self.up = self.down = 0

    def carry(self, vectors: Vectors) -> tuple[Vectors, int]:
        letters = {n: v.numpy().tobytes() for n, v in vectors.items()}
        back = {n: torch.from_numpy(np.frombuffer(b, np.float32).copy()) for n, b in letters.items()}
        return Vectors(**back), sum(map(len, letters.values()))

    def run_round(self, work, *rest):
        outcomes = []
        for c, client in enumerate(work.clients):
            down, size = self.carry(work.down)
            self.down += size
            me = slice(c, c + 1)
            alone = replace(work, down=down, clients=[client], plan=work.plan.select(me), weights=[1.0])
            alone = replace(alone, facts=work.facts_of(me))
            outcome = self.inner.run_round(alone)
            up, size = self.carry(outcome.mean)
            self.up += size
            outcomes.append(replace(outcome, mean=up))
        mean = {n: sum(w * getattr(o.mean, n) for w, o in zip(work.weights, outcomes, strict=True)) for n in up.names()}
        return replace(outcomes[0], mean=Vectors(**mean))


def only_vectors(name: str) -> bool:
    """Whether a method's messages are whole vectors, whose mean the server uses; others: tests/runs/test_ledger.py."""
    method = ALGORITHMS[name]()
    return not (method.scalars or method.rows or method.stays)


@pytest.mark.parametrize("method", list(filter(only_vectors, ALGORITHMS)))
def test_the_ledger_counts_what_a_message_passing_run_serialises(method: str) -> None:
    simulation = assemble(SMALL.replace(algorithm=method))
    post = simulation.engine = Post(simulation.engine)
    result = simulation.run()
    reference = assemble(SMALL.replace(algorithm=method)).run()
    torch.testing.assert_close(result.server.w, reference.server.w)  # the same run, by post
    size = result.server.w.numel()
    book = ledger(simulation.setup.algorithm, result.history, size, size)
    assert (book.bytes_up, book.bytes_down) == (post.up, post.down)
    assert (book.vectors_down, book.vectors_up, book.vectors_paper) == EXPECTED.get(method, (1, 1, 2))
    assert book.bytes_down == book.messages * book.vectors_down * size * 4
    assert book.bytes_paper == book.messages * book.vectors_paper * size * 4


def test_full_bytes_scale_with_the_exported_model() -> None:
    result = assemble(SMALL.replace(algorithm="fedavg")).run()
    book = ledger(result.simulation.setup.algorithm, result.history, 100, 264)
    assert book.bytes_full == book.bytes * 264 // 100


def test_a_target_is_reached_at_its_first_evaluated_round() -> None:
    history = assemble(SMALL.replace(algorithm="fedavg")).run().history
    planted = [replace(r, test_accuracy=a, seconds_train=2.0) for r, a in zip(history, [0.1, 0.5, 0.4], strict=True)]
    hit = first_reached(planted, 0.5)
    assert (hit.round, hit.seconds, hit.bytes) == (2, 4.0, sum(r.bytes_up + r.bytes_down for r in history[:2]))
    assert first_reached(planted, 0.51) is None
