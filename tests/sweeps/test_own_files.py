"""Methods and models from files of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.runs.build import algorithm_class
from fedsmoo.runs.config import Config
from fedsmoo.sweeps.pack import packable

METHOD = """
from __future__ import annotations
from dataclasses import dataclass
from fedsmoo.algorithms import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    scale: float = {scale}
"""


def written(path: Path, scale: str) -> str:
    path.write_text(METHOD.format(scale=scale))
    return f"{path}:Mine"


def test_seeds_of_a_method_of_ones_own_share_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = written(tmp_path / "mine.py", "1.0")
    assert packable([Config(algorithm=spec, seed=s, engine="batched") for s in (0, 1)])
    monkeypatch.chdir(tmp_path)
    assert algorithm_class("mine.py:Mine") is algorithm_class(spec)


def test_an_edited_file_is_imported_anew(tmp_path: Path) -> None:
    spec = written(tmp_path / "mine.py", "1.0")
    first = algorithm_class(spec)
    written(tmp_path / "mine.py", "2.0")  # as long as before, and within the same second
    second = algorithm_class(spec)
    assert (first().options()["scale"], second().options()["scale"]) == (1.0, 2.0)
    written(tmp_path / "mine.py", "1 / 0")
    for _ in range(2):
        with pytest.raises(FedsmooError, match="cannot be imported: ZeroDivisionError"):
            algorithm_class(spec)


def test_files_of_one_name_in_two_folders_stay_apart(tmp_path: Path) -> None:
    specs = []
    for scale in ("1.0", "2.0"):
        (tmp_path / scale).mkdir()
        specs.append(written(tmp_path / scale / "mine.py", scale))
    assert [algorithm_class(s)().options()["scale"] for s in (*specs, *specs)] == [1.0, 2.0, 1.0, 2.0]
