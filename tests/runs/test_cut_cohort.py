"""A cohort of more clients than there are: all take part, and the run is the one in which that was asked for."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsmoo
from fedsmoo.cli import main
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.division.partition import IID
from fedsmoo.data.division.splitfile import save_split
from fedsmoo.data.sources import load
from fedsmoo.runs import division
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.sweeps.grid import expand

TINY = {"model": "softmax", "clients": 4, "rounds": 2, "local_steps": 1, "engine": "serial", "algorithm": "fedavg"}
SAID = "a cohort of 9 is more than the {} clients there are: all of them take part (cohort = {})"


def columns(result: fedsmoo.Result) -> list[Any]:
    return [(r.cohort, r.test_loss, r.bytes_up) for r in result.history]


def test_a_run_is_the_one_of_all_clients(tmp_path: Path) -> None:
    with pytest.warns(FedsmooWarning, match="more than the 4 clients") as said:
        cut = fedsmoo.run(TINY, tmp_path / "cut", cohort=9)
    assert [str(w.message) for w in said] == [SAID.format(4, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = fedsmoo.run(TINY, tmp_path / "asked", cohort=4)
    assert columns(cut) == columns(asked)
    assert columns(cut)[0][0] == [0, 1, 2, 3]
    configs = [read_config(tmp_path / name) for name in ("cut", "asked")]
    assert configs[0].cohort == 4
    assert identity(configs[0]) == identity(configs[1])
    facts = [json.loads((tmp_path / name / "started.json").read_text())["identity"] for name in ("cut", "asked")]
    assert facts[0] == facts[1]


def test_the_command_says_so_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [word for n, v in TINY.items() for word in (f"--{n.replace('_', '-')}", str(v))]
    with pytest.raises(SystemExit) as ended:
        main(["run", *flags, "--cohort", "9", "--out", str(tmp_path / "run")])
    assert not ended.value.code
    assert capsys.readouterr().err.splitlines()[0] == f"fedsmoo: {SAID.format(4, 4)}"


def cut(**settings: Any) -> tuple[int, str]:
    """The size of the first cohort of a simulation that asks for too many clients, and what is said."""
    with pytest.warns(FedsmooWarning, match="is more than the") as said:
        result = fedsmoo.simulate("softmax", **{"cohort": 9, "rounds": 1, "local_steps": 1, **settings})
    assert result.simulation.training.cohort == len(result.history[0].cohort)
    return len(result.history[0].cohort), str(said[0].message)


def test_clients_that_are_given_or_the_data_s_own_are_counted(tmp_path: Path) -> None:
    assert cut(client_indices=[[0, 1], [2, 3], [4, 5]]) == (3, SAID.format(3, 3))
    assert cut(partition=fedsmoo.IID(), clients=5) == (5, SAID.format(5, 5))
    assert cut(data="synthetic", cohort=99)[0] == 30
    assert cut(data="synthetic", partition="iid", clients=5) == (5, SAID.format(5, 5))
    data = load("digits")
    save_split(tmp_path / "two.json", [np.arange(9), np.arange(9, 30)], data, {"name": "imported"}, 0)
    assert cut(split=str(tmp_path / "two.json")) == (2, SAID.format(2, 2))
    lines = "".join(f"{who}:\n{'To be, or not to be, that is the question. ' * 9}\n\n" for who in ("A", "B", "C"))
    (tmp_path / "play.txt").write_text(lines)
    name = f"text:{tmp_path / 'play.txt'}"
    count = len(load(name).natural or ())
    assert 1 <= count < 9
    with pytest.warns(FedsmooWarning, match=f"more than the {count} clients"):
        grid = expand({"dataset": name, "cohort": [9, count], "algorithm": "fedavg"}, "a sweep")
    assert [c.config.cohort for c in grid.cells] == [count]  # which are one run


def test_a_sweep_goes_on_with_runs_that_were_cut(tmp_path: Path) -> None:
    with pytest.warns(FedsmooWarning, match="a cohort of 9"):
        first = fedsmoo.sweep({**TINY, "cohort": 9, "seed": [0, 1]}, tmp_path)
    assert len(first.finished) == 2
    again = fedsmoo.sweep({**TINY, "cohort": 4, "seed": [0, 1]}, tmp_path)
    assert again.finished == first.finished
    assert all("-4of4-" in folder.name for folder in first.finished)


def test_only_code_of_the_users_knows_how_many_clients_its_data_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "count_natural_clients", lambda *_: 7)
    assert division.natural_clients(Config(dataset="synthetic")) == 7
    assert division.natural_clients(Config(dataset="synthetic", dataset_options={"a": 1})) is None
    assert division.natural_clients(Config(dataset="mine.py:data")) is None


def test_a_partition_of_the_users_is_no_rule_of_ours() -> None:
    assert division.rule_in_force(Config(partition="mine.py:Halves", seed=5)) == (None, 5)
    rule, seed = division.rule_in_force(Config(partition="iid", seed=5))
    assert (type(rule), seed) == (IID, 5)
