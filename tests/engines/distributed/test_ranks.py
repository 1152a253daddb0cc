"""Two and three processes give what one gives: every kind of method, unequal shares, ranks without clients."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import forked
import pytest
import torch
from patience import PATIENCE

from fedsmoo.engines.distributed import engine as distributed
from fedsmoo.engines.distributed.ranks import Ranks

from .cases import CASES, CASES_OF, SMALL, outcome
from .launch import HERE, Meeting, environment


@pytest.fixture(scope="module")
def serial():
    return {name: outcome(config.replace(engine="serial", exact=False)) for name, config in CASES.items()}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "end"
    meetings = {world: Meeting() for world in (2, 3)}
    words = [sys.executable, HERE / "worker.py", path, *(f"{world}:{m.port}" for world, m in meetings.items())]
    done = forked.run(words, env=environment(), timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def ends(job):
    """What each of the ranks ended with, by how many there were."""
    return {world: [torch.load(f"{job}.{world}.{r}") for r in range(world)] for world in CASES_OF}


EACH = [(world, case) for world, cases in CASES_OF.items() for case in cases]


def vectors(end):
    """All vectors of a run by name."""
    rows = {f"client {i} {n}": v for i, row in end["clients"].items() for n, v in row.items()}
    return {**end["server"], **rows}


def test_the_cohorts_are_what_they_are_meant_to_be(serial):
    cohorts = [h[-1] for h in serial["fedsmoo"]["history"]]
    for world in (2, 3):
        shares = [[sum(i % world == r for i in c) for r in range(world)] for c in cohorts]
        assert any(len(set(s)) > 1 for s in shares), "unequal shares"
        assert any(0 in s and sum(s) for s in shares), "a rank without a client"
        assert [] in cohorts, "an empty round"


@pytest.mark.parametrize(("world", "case"), EACH)
def test_ranks_agree_with_serial(serial, ends, world, case):
    one, each = serial[case], [rank[case] for rank in ends[world]]
    assert len(one["history"]) == SMALL.rounds
    assert each[0]["ranks"] == world
    for end in each:
        assert [h[-1] for h in end["history"]] == [h[-1] for h in one["history"]]
        assert end["clients"].keys() == one["clients"].keys()
        ours, theirs = vectors(end), vectors(one)
        assert ours.keys() == theirs.keys()
        for name in ours:
            if "exact" in case:
                assert torch.equal(ours[name], theirs[name]), name
            else:  # float64: nothing but the order of additions differs
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-11, atol=1e-11)
    if "exact" in case:
        assert all(end["history"] == one["history"] for end in each)
    for end in each:  # loss and drift are means over the clients, however unevenly the ranks divide them
        for ours, theirs in zip(end["history"], one["history"], strict=True):
            assert [type(v) for v in ours] == [type(v) for v in theirs]  # an empty round has no loss
            known = [(a, b) for a, b in zip(ours[:4], theirs[:4], strict=True) if b is not None]
            assert [a for a, _ in known] == pytest.approx([b for _, b in known], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("world", CASES_OF)
def test_metrics_of_ranks_are_those_of_one_process(serial, ends, world):
    """F1, accuracy, AUC and perplexity: every rank evaluates the whole test part, and all of them the same model."""
    one = serial["metrics"]["metrics"]
    assert all([*found] == ["f1", "accuracy", "auc", "perplexity"] for found in one)
    for rank in ends[world]:
        for ours, theirs in zip(rank["metrics"]["metrics"], one, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
    assert len({found["auc"] for found in one}) > 1  # they change with the model


@pytest.mark.parametrize(("world", "case"), EACH)
def test_all_ranks_hold_the_same_bits(ends, world, case):
    first, *others = (rank[case] for rank in ends[world])
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(vectors(first).values(), vectors(other).values(), strict=True))
        assert first["history"] == other["history"]
        assert first["engine"] == other["engine"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_rank_follows_the_rule_by_itself(device, monkeypatch):
    """Nothing is timed, so there is nothing to agree on; the share of a rank decides, which is the same for all."""
    asked = []
    setup = SimpleNamespace(task=SimpleNamespace(device=torch.device(device)))
    monkeypatch.setattr(distributed, "launched", lambda: True)
    monkeypatch.setattr(distributed, "join", lambda device: Ranks(1, 2, "nccl"))
    monkeypatch.setattr(distributed, "make_engine", lambda *given: asked.append((given[0], given[3])))
    monkeypatch.setattr(distributed, "Distributed", lambda setup, inner, ranks, same_bits: inner)
    distributed.engine_for("auto", setup, None, 4, 8)
    assert asked == [("auto", 2)]
