"""What options may be is what a run's ``config.toml`` can hold, and what it holds is read back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.run import Run
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.runs.settings.toml import named_tables
from fedsmoo.runs.storage import folder as runfolder
from fedsmoo.runs.storage.checkpoint import seal
from fedsmoo.runs.storage.folder import RunFolder, config_text, lossless_text
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.runs.storage.toml import to_toml

scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3), max_leaves=6
)
tables = st.dictionaries(st.text(), values, max_size=4)


def read(text: str) -> Config:
    return Config(**named_tables(tomllib.loads(text), "here"))


@settings(max_examples=60, deadline=None)
@given(tables, tables, st.text().filter(lambda t: t.lower() != "none"))
def test_any_options_come_back(first: dict[str, Any], second: dict[str, Any], path: str) -> None:
    config = Config(algorithm_options=first, model_options=second, data=path)
    back = read(config_text(config))
    assert back == config
    assert types(back.to_dict()) == types(config.to_dict())  # 1, 1.0 and true are equal


def types(v: Any) -> Any:
    if isinstance(v, dict):
        return {k: types(x) for k, x in v.items()}
    return [types(x) for x in v] if isinstance(v, list) else type(v)


ODD = {
    "flags": [True, False],
    "table": {"a": 1, "b c": {"d": []}},
    "text": 'a\rb\tc\x00\x1f\x7f\x85\u2028"\\end',
    "β": 2.0,
    "": [[1, 2.5], ["x"]],
    "big": 10**25,
    "inf": float("-inf"),
}


def test_odd_options_survive_a_run_folder(tmp_path: Path) -> None:
    config = Config(algorithm_options=ODD, model_options=ODD)
    RunFolder(tmp_path / "a", lossless_text(config))
    assert read_config(tmp_path / "a") == config


def test_numbers_of_numpy_and_tuples_are_written_as_plain_ones() -> None:
    written = {"n": np.int64(3), "x": np.float32(0.5), "y": np.float64(0.1), "b": np.True_, "t": (1, (2, 3))}
    back = {"n": 3, "x": 0.5, "y": 0.1, "b": True, "t": [1, [2, 3]]}
    assert read(config_text(Config(model_options=written))).model_options == back
    sealed = json.loads(seal({"options": written}).rpartition(b"}")[0] + b"}")  # as a checkpoint remembers them
    assert sealed["options"] == back
    assert to_toml({"t": {"s": "a\rb", "β": [True]}}) == '\n[t]\ns = "a\\rb"\n"β" = [true]\n'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": [1, None]}, "model_options: widths: a TOML file cannot hold none there: leave it out"),
        ({"norm": None}, "model_options: norm: a TOML file cannot hold none there"),
        ({"f": {1: 2}}, "model_options: f has the name 1, which a TOML file cannot hold"),
        ({"w": np.zeros((2, 1))}, "model_options: w: a TOML file cannot hold array([[0.], [0.]]); options are"),
        ({"path": "bad\udcff"}, "model_options: path is 'bad\\udcff', which is not valid text"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_before_a_folder_is_made(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FedsmooError) as refused:
        Run.begin(Config(model_options=options), tmp_path / "a")
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda values: to_toml({**values, "lr": 0.5}), "lr would be read back otherwise"),
        (lambda values: to_toml(values) + "[", "the settings cannot be kept in config.toml"),
    ],
)
def test_a_file_that_would_be_read_back_otherwise_is_never_written(
    wrong: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def once(values: dict[str, Any]) -> str:
        calls.append(values)
        return wrong(values) if len(calls) == 1 else to_toml({**values, "lr": 0.25})

    monkeypatch.setattr(runfolder, "to_toml", once)
    with pytest.raises(FedsmooError, match=message):
        Run.begin(Config(), tmp_path / "a")
    assert not (tmp_path / "a" / CONFIG).exists()


def test_metrics_are_a_list_in_a_file_as_in_a_program(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('metrics = ["f1", "accuracy"]\n')
    assert make_config(tmp_path / "a.toml") == make_config({"metrics": ["f1", "accuracy"]})
    assert make_config(tmp_path / "a.toml").metrics == "f1,accuracy"
    (tmp_path / "a.toml").write_text("metrics = [1]\n")
    with pytest.raises(FedsmooError, match=r"a\.toml: metrics is \[1\], but must be names"):
        make_config(tmp_path / "a.toml")


def test_another_partition_over_the_config_of_a_run_is_as_if_it_were_named_alone(tmp_path: Path) -> None:
    """What a run wrote down of its own partition made iid one with replacement, and dirichlet one without."""
    names = ("iid", "dirichlet-0.3", "pathological-2")
    alone = {name: make_config(None, {"partition": name}) for name in names}
    for one in names:
        (tmp_path / "a.toml").write_text(config_text(alone[one]))
        for other in names:
            assert make_config(tmp_path / "a.toml", {"partition": other}).replacement is (other != "iid")
            assert make_config(alone[one], {"partition": other}) == alone[other]


def test_drawing_otherwise_than_by_default_stays_with_another_partition(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("replacement = true\n")
    assert make_config(tmp_path / "a.toml", {"partition": "iid"}).replacement is True
    (tmp_path / "a.toml").write_text('partition = "dirichlet"\nreplacement = false\n')
    assert make_config(tmp_path / "a.toml", {"partition": "pathological"}).replacement is False
    (tmp_path / "a.toml").write_text('partition = "iid"\nreplacement = true\n')
    assert make_config(tmp_path / "a.toml", {"partition": "dirichlet"}).replacement is True


@pytest.mark.parametrize(
    ("text", "over", "name", "options"),
    [
        ("[algorithm]\nr = 0.3\n", "fedsmoo", "algorithm", {"r": 0.3}),
        ("[algorithm]\nmu = 0.3\n", "fedprox", "algorithm", {"mu": 0.3}),
        ("[model]\nhidden = 7\n", "mlp", "model", {"hidden": 7}),
        ("[local_optimizer]\nmomentum = 0.5\n", "momentum", "local_optimizer", {"momentum": 0.5}),
        ("[partition]\nleast = 3\n", "classwise", "partition", {"least": 3}),
        ('[algorithm]\nname = "fedprox"\nmu = 0.3\n', "fedavg", "algorithm", {}),
        ('[algorithm]\nname = "fedprox"\nmu = 0.3\n', "FedProx", "algorithm", {"mu": 0.3}),
    ],
)
def test_options_without_a_name_are_of_what_is_named_over_them(
    text: str, over: str, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Those of a file that names nothing itself were lost beside a flag, even beside the default's own name."""
    (tmp_path / "a.toml").write_text(text)
    found = make_config(tmp_path / "a.toml", {name: over})
    assert getattr(found, f"{name}_options") == options


def test_options_without_a_name_that_are_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[algorithm]\nr = 0.3\n")
    with pytest.raises(FedsmooError, match=r"a\.toml: unknown hyper-parameter of FedAvg 'r'"):
        make_config(tmp_path / "a.toml", {"algorithm": "fedavg"})
    assert make_config(Config(algorithm_options={"r": 0.3}), {"algorithm": "fedavg"}).algorithm_options == {}
