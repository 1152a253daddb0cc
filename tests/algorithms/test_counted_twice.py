"""Sampling by size beside a mean by size: a line says that a client's samples count twice, and they do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedsmoo.core.server import weights_of
from fedsmoo.data.batches.cohort import cohort, make_sampling
from fedsmoo.data.batches.rules import Ask
from fedsmoo.runs.build import assemble
from fedsmoo.runs.settings.merge import make_config

SMALL = {"model": "softmax", "clients": 6, "cohort": 2, "rounds": 1, "local_steps": 1, "algorithm": "fedavg"}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sampling", ["uniform", "bernoulli", "weighted", "round_robin", "power_of_choice"])
def test_a_line_says_that_samples_count_twice(sampling: str, weighted: bool) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assemble(make_config(SMALL, {"sampling": sampling, "weighted": weighted}))
    said = [str(w.message) for w in told if "count twice over" in str(w.message)]
    assert said == [
        f"sampling={sampling} draws large clients more often, and weighted lets them weigh more: "
        "large clients count twice over"
    ] * (weighted and sampling in ("weighted", "power_of_choice"))


def test_what_is_said_is_so() -> None:
    """What three clients count over many cohorts of two: the first counts more than its share of the samples."""
    sizes, rounds, config = [60, 20, 20], 3000, make_config(SMALL, {"weighted": True})
    ask, rule = Ask(sizes, lambda ids: [0.0] * len(ids)), make_sampling("weighted")
    plain, twice = np.zeros(3), np.zeros(3)
    for t in range(rounds):
        who = cohort(0, t, 3, 2, rule, ask)
        plain[who] += 1 / 2 / rounds
        twice[who] += np.array(weights_of(config, [sizes[i] for i in who])) / rounds
    assert twice[0] > 0.6 > plain[0] > 1 / 3  # 60 of 100 samples are the first client's
