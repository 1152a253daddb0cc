"""A fixed sample of the drill with hostile clients and damaged states; ``make drills FULL=1`` has all."""

from __future__ import annotations

from pathlib import Path

from benchmarks.drills import federation
from benchmarks.drills.parts import hostile


def test_a_sample_of_the_drill_holds() -> None:
    outcomes = list(federation.drill(full=False, seed=1, share=0.03))
    assert [o["failures"] for o in outcomes] == [[]] * len(outcomes)
    assert sum(o["tried"] for o in outcomes) >= 30


def test_the_table_is_long_and_every_entry_another() -> None:
    names = [name for name, _ in hostile.replies()]
    assert len(names) == len(set(names)) >= 200


def test_the_drill_notices(tmp_path: Path) -> None:
    """A client that is believed everything: bounds are off."""
    case = federation.Case(tmp_path, 2, {federation.HOSTILE: hostile.of_values(hostile.VALUES["all 1e30"])})
    case.settings = {"norm_bound": 0.0}
    assert "accuracy is" in federation.verdict(case) or "skipped" in federation.verdict(case)
