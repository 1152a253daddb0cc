"""A run is what its files held when it began: edited later, they are another run's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.experiment.conduct import Run
from fedsmoo.experiment.config import Config
from fedsmoo.experiment.identity import identity
from fedsmoo.experiment.index import describe
from fedsmoo.experiment.results import from_folder, from_json, to_json

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
        algorithm=f"{method}:Mine", model="softmax", rounds=3, clients=6, cohort=2, local_steps=1, device="cpu"
    )
    began = identity(config)
    Run.begin(config, tmp_path / "done").go()
    seen: list[int] = []
    Run.begin(config, tmp_path / "cut").go(watch=lambda r: seen.append(r.round), stop=lambda: len(seen) == 2)
    Run.begin(config, tmp_path / "unsaved")  # killed before its first checkpoint
    written(method, "edited since")
    assert identity(config) != began
    result = from_folder(tmp_path / "done")
    assert result.identity == describe(tmp_path / "done")["identity"] == began
    (tmp_path / "result.json").write_text(to_json(result))
    assert from_json(tmp_path / "result.json").identity == began
    for name in ("cut", "unsaved"):
        with pytest.raises(FedsmooError, match=r"other settings \(algorithm_content was"):
            Run.reopen(tmp_path / name)
    written(method, "as it is")
    for name in ("cut", "unsaved"):
        Run.reopen(tmp_path / name).go()
        assert from_folder(tmp_path / name).curve["test_accuracy"] == result.curve["test_accuracy"]
