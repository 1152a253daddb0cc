"""What CONTRIBUTING.md shows is run: each file that it writes, by each command that it gives."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo.cli import main
from fedsmoo.core.user_code import user_object
from fedsmoo.testing import check_algorithm

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
BLOCKS = {m[1]: m[0] for m in re.finditer(r"(?<=^```python\n)# (my_\w+\.py)\n.*?(?=^```)", TEXT, re.S | re.M)}
COMMANDS = [line for block in re.findall(r"^```bash\n(.*?)^```", TEXT, re.S | re.M) for line in block.splitlines()]
FIVE = [f"my_{kind}.py" for kind in ("rows", "noise", "own_loss", "personal", "step")]
RUNS = [line for line in COMMANDS if line.startswith("fedsmoo run")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all files of the guide."""
    monkeypatch.chdir(tmp_path)
    for name, text in BLOCKS.items():
        Path(name).write_text(text)
    return tmp_path


def test_one_file_for_each_thing_to_bring_none_longer_than_thirty_lines() -> None:
    things = {f"my_{kind}.py" for kind in ("method", "model", "data", "partition", "loss", "sampling")}
    assert set(BLOCKS) == things | set(FIVE)
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M):
        assert len(block.splitlines()) <= 30
    assert {re.search(r"my_\w+\.py", line)[0] for line in RUNS} == set(BLOCKS)  # type: ignore[index]


@pytest.mark.parametrize("line", RUNS, ids=lambda line: re.search(r"my_\w+", line)[0])  # type: ignore[index]
def test_the_command_runs(line: str, folder: Path) -> None:
    few = ["--rounds", "1", "--local-steps", "1", "--device", "cpu", "--out", "out"]
    words = re.sub(r"--rounds \d+", "", line)
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(words)[1:], *few])
    assert not ended.value.code


@pytest.mark.parametrize("name", FIVE)
def test_five_kinds_of_methods_in_under_25_lines_each_keep_the_contract(name: str, folder: Path) -> None:
    assert len(BLOCKS[name].splitlines()) < 25
    (cls,) = (line.split("(")[0].removeprefix("class ") for line in BLOCKS[name].splitlines() if line[:6] == "class ")
    check_algorithm(user_object(f"{name}:{cls}", "algorithm")())


def test_the_partition_of_the_guide_is_as_unequal_as_it_says(folder: Path) -> None:
    rule = user_object("my_partition.py:by_size", "partition")
    sizes = np.array([len(i) for i in rule(np.zeros(10_050), 10, 50, 0, power=1.0)])
    truth = 10_000 / (1 + np.arange(50)) / np.sum(1 / (1 + np.arange(50))) + 1
    np.testing.assert_allclose(sizes, truth, atol=1)
    assert sorted(j for i in rule(np.zeros(80), 10, 4, 0) for j in i) == list(range(80))


def test_the_loss_of_the_guide_is_the_formula(folder: Path) -> None:
    out, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([0, 0])
    p = np.array([np.e**2 / (np.e**2 + 1), 1 / (1 + np.e)])
    found = user_object("my_loss.py:focal", "loss")(out, y, gamma=1.5)
    np.testing.assert_allclose(found, -((1 - p) ** 1.5) * np.log(p), rtol=1e-12)


def test_the_sampling_of_the_guide_prefers_the_first_half(folder: Path) -> None:
    draw = user_object("my_sampling.py:mostly_first", "sampling")
    drawn = np.concatenate([draw(0, r, 20, 1, half=0.9) for r in range(2000)])
    assert abs(np.mean(drawn < 10) - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 2000)  # four standard deviations
