"""Every table of an experiment that is not the paper's says so, whatever the format keeps of it."""

from __future__ import annotations

import pytest

from fedsmoo.paper.render import FORMATS, render
from fedsmoo.paper.reproduce import build
from fedsmoo.paper.selection import Selection

MARK = "not the paper's setting (model = mlp, dataset = digits, rounds = 8)"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["accuracy", "rounds", "ablation"])
def test_each_table_is_marked(name: str, form: str) -> None:
    wish = Selection(name, scale=0.01)
    made = build(wish.sweep({"model": "mlp", "dataset": "digits"}), {})
    assert all(MARK in render([table], form) for table in made)
    assert "setting" not in render(build(Selection(name).sweep(), {}), "csv")
