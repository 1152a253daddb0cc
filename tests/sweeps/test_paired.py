"""What the intervals of a comparison say by chance alone: methods that are all alike, many times over."""

from __future__ import annotations

import numpy as np
import pytest

from fedsmoo.sweeps.paired import paired_difference, rank_methods


@pytest.mark.parametrize(
    ("methods", "bold", "some"),
    [(2, (0.035, 0.07), (0.035, 0.07)), (10, (0.0, 0.01), (0.45, 0.6))],
)
def test_what_alike_methods_look_like(methods: int, bold: tuple[float, float], some: tuple[float, float]) -> None:
    """docs/experiments.md: of two, one is ahead in a twentieth; of ten, some is not level with the first in half."""
    rng, times, seeds = np.random.default_rng(0), 1000, 3
    ahead = apart = 0
    for _ in range(times):
        split = rng.normal(size=seeds)  # which all methods share
        ends = {f"m{k}": dict(enumerate((split + rng.normal(size=seeds)).tolist())) for k in range(methods)}
        first, *others = rank_methods(ends)
        clear = [pair is not None and pair.clear for pair in (paired_difference(ends[m], ends[first]) for m in others)]
        ahead, apart = ahead + all(clear), apart + any(clear)
    assert bold[0] <= ahead / times <= bold[1]
    assert some[0] <= apart / times <= some[1]
