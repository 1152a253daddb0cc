"""A run is what its files held when it began: edited later, they are another run's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.data.division.splitfile import save_split
from fedsmoo.data.sources import load
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.sweeps.index import describe
from fedsmoo.sweeps.results import from_folder, from_json, to_json

METHOD = '''
from dataclasses import dataclass
from fedsmoo.algorithms import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg, {how}."""
'''


def written(path: Path, how: str) -> None:
    path.write_text(METHOD.replace("{how}", how))
    os.utime(path, ns=(10**18, 10**18 + len(how)))  # long ago, and at another time for other words


def test_an_edited_method_file_does_not_take_over_an_old_run(tmp_path):
    method = tmp_path / "mine.py"
    written(method, "as it is")
    config = Config(
        algorithm=f"{method}:Mine",
        model="softmax",
        rounds=3,
        clients=6,
        cohort=2,
        local_steps=1,
        engine="serial",
        device="cpu",
    )
    began = identity(config)
    Run.begin(config, tmp_path / "done").go()
    seen: list[int] = []
    Run.begin(config, tmp_path / "cut").go(callback=lambda r: seen.append(r.round), stop=lambda: len(seen) == 2)
    Run.begin(config, tmp_path / "unsaved")  # killed before its first checkpoint
    written(method, "edited since")
    assert identity(config) != began
    result = from_folder(tmp_path / "done")
    assert result.identity == describe(tmp_path / "done")["identity"] == began
    (tmp_path / "result.json").write_text(to_json(result))
    assert from_json(tmp_path / "result.json").identity == began
    for name in ("cut", "unsaved"):
        with pytest.raises(FedsmooError, match=rf"^{re.escape(str(method))} was edited .* put back what it held"):
            reopen(tmp_path / name)
    written(method, "as it is")
    for name in ("cut", "unsaved"):
        reopen(tmp_path / name).go()
        assert from_folder(tmp_path / name).curve["test_accuracy"] == result.curve["test_accuracy"]


MODEL = "from torch import nn\ndef mine():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # {how}\n"


def write_own(path: Path, how: str) -> None:
    """A file of the user's own that holds something else for other words: a method, a model, data or a split."""
    if path.suffix == ".py":
        path.write_text({"mine.py": METHOD, "model.py": MODEL}[path.name].replace("{how}", how))
    elif path.suffix == ".npz":
        x, y = np.full((40, 64), len(how), np.float32), np.arange(40) % 10
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    else:
        save_split(path, [np.arange(len(how)), np.arange(len(how), 60)], load("digits"), {}, 0)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("mine.py", {"algorithm": "{}:Mine"}),
        ("model.py", {"model": "{}:mine"}),
        ("own.npz", {"dataset": "own", "data": "{}", "clients": 2, "partition": "iid"}),
        ("own.json", {"split": "{}", "clients": 2}),
    ],
)
def test_resume_names_the_file_that_was_edited(name: str, setting: dict, tmp_path: Path) -> None:
    path, run = tmp_path / name, tmp_path / "run"
    write_own(path, "as it is")
    given = {k: v.format(path) if isinstance(v, str) else v for k, v in setting.items()}
    config = Config(**{"model": "softmax", "clients": 6, "engine": "serial", "device": "cpu"} | given)
    config = config.replace(rounds=2, cohort=2, local_steps=1)
    Run.begin(config, run).go(stop=lambda: True)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    write_own(path, "edited since")
    line = rf"^{re.escape(str(path))} was edited or removed since {re.escape(str(run))} was started: put back"
    with pytest.raises(FedsmooError, match=line):
        reopen(run)
    path.unlink()
    with pytest.raises(FedsmooError, match=re.escape(str(path))):
        reopen(run)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    write_own(path, "as it is")
    reopen(run).go()
