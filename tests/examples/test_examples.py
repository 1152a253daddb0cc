"""The scripts in examples/ run as they are, and say what is true."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsmoo import FedAvg, simulate
from fedsmoo.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def script(name: str) -> dict[str, Any]:
    """What a script defines, without running it."""
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))


def test_there_are_five_of_them_and_all_are_short() -> None:
    assert [p.stem for p in EXAMPLES] == ["one_file_fedsmoo", "optuna_packed", "own_data", "own_method", "own_model"]
    assert max(len(p.read_text().splitlines()) for p in EXAMPLES) <= 75


def test_the_plain_loop_in_one_file_is_fedsmoo(capsys: pytest.CaptureFixture[str]) -> None:
    assert script("one_file_fedsmoo")["main"]() < 1e-12
    assert "accuracy 0." in capsys.readouterr().out


def test_a_model_of_ones_own_trains_alike_with_and_without_batched() -> None:
    plain, tall = script("own_model")["main"]()
    torch.testing.assert_close(plain.server.w, tall.server.w, rtol=0, atol=1e-12)
    assert (plain.simulation.engine.name, tall.simulation.engine.name) == ("vmap", "batched")


def test_the_method_of_the_example_is_fedavg_where_nothing_is_averaged() -> None:
    averaged = script("own_method")["Averaged"]
    task = {"clients": 5, "cohort": 3, "rounds": 3, "dtype": "float64", "device": "cpu"}
    whole, plain = (simulate("softmax", "digits", a, **task).server.w for a in (averaged(share=0.0), FedAvg()))
    torch.testing.assert_close(whole, plain, rtol=0, atol=1e-12)


def test_data_of_ones_own_comes_to_clients_in_turn() -> None:
    mine = script("own_data")
    result = mine["main"]()
    assert [r.cohort for r in result.history[:3]] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert result.accuracy > 0.95
    x, y, *_ = mine["rings"](seed=0, noise=0.0)
    np.testing.assert_allclose(np.hypot(x[:, 0], x[:, 1]), 1 + y, rtol=1e-6)


@pytest.mark.parametrize("name", ["own_data", "own_method", "own_model"])
def test_the_command_in_a_script_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = " ".join(str(script(name)["__doc__"]).split())
    words = shlex.split(next(part for part in text.split("``") if part.startswith("fedsmoo run")))[1:]
    few = ["--rounds", "2", "--local-steps", "1", "--device", "cpu", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as ended:
        main([*words, *few])
    assert not ended.value.code


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_only_a_script_that_is_run_does_anything(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))
    assert capsys.readouterr().out == ""
    assert path.read_text().endswith('if __name__ == "__main__":\n    main()\n')
