"""A row of benchmarks/cpu/models.py for a module of one's own, and the table that it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.cpu.zoo import Own
from benchmarks.documents.machines import models_table

FILE = "from torch import nn\n\n\ndef factory():\n    return nn.Linear(6, 2)\n"


@pytest.mark.parametrize(("inputs", "tokens", "classes"), [("2x3", 0, 4), ("7", 11, 3), ("7", 11, 0)])
def test_a_module_of_one_s_own_has_the_data_that_it_takes(
    inputs: str, tokens: int, classes: int, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    row = Own(f"{tmp_path / 'mine.py'}:factory", inputs, tokens, classes).row()
    data = row.data(20)
    assert row.module().weight.shape == (2, 6)
    assert list(data.x_train.shape) == [20, *map(int, inputs.split("x"))]
    assert data.x_train.is_floating_point() is not bool(tokens)
    assert not tokens or 0 <= int(data.x_train.min()) <= int(data.x_train.max()) < tokens
    if classes:
        assert set(data.y_train.tolist()) == set(range(classes))
    else:
        assert torch.equal(data.y_train[:, :-1], data.x_train[:, 1:])


def test_the_table_says_how_many_times_as_fast_as_the_loop() -> None:
    seconds = {"plain loop": 0.1, "serial": 0.2, "vmap": 0.025}
    row = {"name": "mine", "about": "", "trained": 7, "parameters": 9, "auto": "vmap", "seconds_per_round": seconds}
    facts = {"task": "a task", "turns": 2, "hardware": "a machine", "versions": {"torch": "2"}}
    text = models_table({"results": [row, {"name": "other", "fails": "it cannot"}], **facts})
    assert "| mine |  | 7 of 9 | 100 | 0.50x |  | **4.0x** |  |" in text
    assert "other" not in text
