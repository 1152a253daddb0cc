"""Cohort rules: their distributions in closed form, what asking costs, and runs that are resumed."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy import stats

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.data.batches.cohort import cohort, make_sampling
from fedsmoo.data.batches.rules import Ask
from fedsmoo.runs.build import assemble
from fedsmoo.runs.settings.merge import make_config

SIZES = [1, 2, 3, 4]
SMALL = {
    "model": "softmax", "clients": 8, "cohort": 2, "rounds": 5, "local_steps": 2, "device": "cpu",
    "algorithm": "fedavg", "partition": "dirichlet", "u": 0.1, "replacement": False,
}  # fmt: skip


def asked(losses=None) -> Ask:
    return Ask(SIZES, lambda ids: [(losses or [0.0] * 4)[i] for i in ids])


def counts(sampling: str, options=None, draws: int = 4000, losses=None) -> Counter:
    rule = make_sampling(sampling, options)
    return Counter(tuple(cohort(7, number, 4, 2, rule, asked(losses))) for number in range(draws))


def chance(group: tuple[int, ...]) -> float:
    """The chance that these clients are drawn, one after the other in proportion to samples, in any order."""
    p, total = np.array(SIZES) / sum(SIZES), 0.0
    for order in permutations(group):
        product, left = 1.0, 1.0
        for i in order:
            product, left = product * p[i] / left, left - p[i]
        total += product
    return total


PAIRS = {pair: chance(pair) for pair in combinations(range(4), 2)}


def p_value(found: Counter, chances: dict[tuple[int, ...], float]) -> float:
    assert set(found) <= set(chances)
    draws = sum(found.values())
    return stats.chisquare([found[k] for k in chances], [draws * v for v in chances.values()]).pvalue


def test_weighted_cohorts_are_drawn_in_proportion_to_samples():
    assert sum(PAIRS.values()) == pytest.approx(1)
    assert p_value(counts("weighted"), PAIRS) > 0.01
    assert p_value(counts("weighted"), dict.fromkeys(PAIRS, 1 / 6)) < 1e-6  # it would notice


def test_round_robin_goes_round():
    rule = make_sampling("round_robin")
    assert [cohort(0, t, 5, 2, rule) for t in range(5)] == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_power_of_choice_takes_the_largest_losses_of_candidates():
    """Three of four candidates: the pair depends on who is left out."""
    losses = [0.4, 0.3, 0.2, 0.1]
    chances = {(0, 1): chance((0, 1, 2)) + chance((0, 1, 3)), (0, 2): chance((0, 2, 3)), (1, 2): chance((1, 2, 3))}
    assert p_value(counts("power_of_choice", {"candidates": 3}, losses=losses), chances) > 0.01
    assert set(counts("power_of_choice", {"candidates": 4}, 50, losses)) == {(0, 1)}
    assert set(counts("power_of_choice", None, 50, losses)) == {(0, 1)}  # twice as many are all


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_power_of_choice_asks_at_the_present_model_and_pays_for_it(engine):
    run = assemble(make_config(SMALL, {"sampling": "power_of_choice", "candidates": 4, "engine": engine}))
    plain = assemble(make_config(SMALL, {"engine": engine}))
    model = 4 * run.setup.task.model.layout.count
    for number in range(4):
        before = run.server.w.clone()
        record, other = run.advance(), plain.advance()
        sizes = np.array([len(i) for i in run.indices], float)
        rng = fedsmoo.stream(run.training.seed, "cohort", number)
        found = sorted(rng.choice(8, 4, replace=False, p=sizes / sizes.sum()).tolist())
        losses = {i: run.facts.losses([i], before)[0] for i in found}
        assert record.cohort == sorted(sorted(found, key=lambda i: -losses[i])[:2])
        assert record.bytes_down == other.bytes_down + 2 * model  # two candidates got the model for nothing
        assert record.bytes_up == other.bytes_up + 4 * 4


@pytest.mark.parametrize("sampling", ["weighted", "round_robin", "power_of_choice"])
def test_a_resumed_run_has_the_same_cohorts_and_bits(sampling, tmp_path):
    config = make_config(SMALL, {"sampling": sampling})
    whole = fedsmoo.run(config, tmp_path / "whole")
    fedsmoo.run(config, tmp_path / "cut", callback=lambda r: r.round < 3)
    resumed = fedsmoo.resume(tmp_path / "cut")
    assert [r.cohort for r in resumed.history] == [r.cohort for r in whole.history]
    assert torch.equal(resumed.server.w, whole.server.w)


OWN = """
class Lowest:
    asks, fixed = True, True
    def __init__(self, among: int = 3):
        self.among = among
    def draw(self, rng, number, m, n, ask):
        found = rng.choice(m, self.among, replace=False)
        return found[ask(found).argsort()[:n]]
class Twice:
    def draw(self, rng, number, m, n, ask):
        return [0, 0]
"""


def test_a_rule_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    run = assemble(make_config(SMALL, {"sampling": f"{tmp_path / 'mine.py'}:Lowest", "among": "4"}))
    plain = assemble(make_config(SMALL)).advance()
    assert run.advance().bytes_up == plain.bytes_up + 4 * 4
    with pytest.raises(FedsmooError, match="where a client is there twice"):
        assemble(make_config(SMALL, {"sampling": f"{tmp_path / 'mine.py'}:Twice"})).advance()
    with pytest.raises(FedsmooError, match="unknown option of sampling"):
        make_sampling("power_of_choice", {"candidate": 3})
    with pytest.raises(FedsmooError, match="1 candidates for a cohort of 2"):
        assemble(make_config(SMALL, {"sampling": "power_of_choice", "candidates": 1})).advance()


KEEPING = """
import random
class Remembers:
    def __init__(self):
        self.last = []
    def draw(self, rng, number, m, n, ask):
        self.last = rng.choice([i for i in range(m) if i not in self.last], n, replace=False).tolist()
        return self.last
class Elsewhere:
    def draw(self, rng, number, m, n, ask):
        return random.sample(range(m), n)
class Undeclared:
    def draw(self, rng, number, m, n, ask):
        return ask(range(m)).argsort()[-n:]
"""


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("Remembers", r"for round \d, but as at the beginning .*: let it keep nothing"),
        ("Elsewhere", "for round 0, .*: let it keep nothing and draw from the generator"),
        ("Undeclared", "asks clients for their losses: say asks = True"),
    ],
)
def test_a_rule_that_could_not_be_resumed_is_refused(rule, says, tmp_path):
    """What it keeps is lost when a run is stopped; and losses of a cohort drawn ahead are those of another model."""
    (tmp_path / "keeping.py").write_text(KEEPING)
    run = assemble(make_config(SMALL, {"sampling": f"{tmp_path / 'keeping.py'}:{rule}", "engine": "batched"}))
    random.seed(1)
    with pytest.raises(FedsmooError, match=says):
        run.run()
