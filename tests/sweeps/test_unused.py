"""What a sweep's file says and no run of it would have: refused in one line; and options that win one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsmoo import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.sweeps.bases import EXPERIMENTS, description, read_sweep, with_base
from fedsmoo.sweeps.grid import expand


def only(table: dict[str, Any], **settings: Any) -> Config:
    (cell,) = expand(table, "here", settings).cells
    return cell.config


def test_a_row_is_the_method_it_is_called_by() -> None:
    """With --algorithm over the file, the row FedAvg would show the numbers of FedProx."""
    table: dict[str, Any] = {"methods": {"FedProx": {}, "FedAvg": {}}}
    with pytest.raises(FedsmooError, match="here, FedAvg: algorithm is 'fedprox', but this row's is 'fedavg'"):
        expand(table, "here", {"algorithm": "fedprox"})
    with pytest.raises(FedsmooError, match="here, FedProx: algorithm is 'fedavg', but this row's is 'fedprox'"):
        expand({**table, "columns": {"a": {"last": {"algorithm": "fedavg"}}}}, "here")
    assert [c.config.algorithm for c in expand(table, "here").cells] == ["fedprox", "fedavg"]


@pytest.mark.parametrize("given", ["fedprox", ["fedavg", "fedprox"], {"name": "FedProx", "mu": 0.1}])
def test_a_method_beside_the_table_of_methods_is_run_or_refused(given: Any) -> None:
    with pytest.raises(FedsmooError, match=r"(?i)'fedprox', but the table \[methods\] has no such row: add it|'mu'"):
        expand({"algorithm": given, "methods": {"FedAvg": {}}}, "here")
    rows = {"FedProx": {}, "a": {"algorithm": "fedprox", "lr": 0.3}}
    assert len(expand({"algorithm": "fedprox", "methods": rows}, "here").cells) == 2


def test_an_option_of_a_row_is_given_once() -> None:
    row = {"algorithm": "fedprox", "algorithm_options": {"mu": 0.2}}
    with pytest.raises(FedsmooError, match=r"here, a: algorithm\.mu is given twice, as 0.2 and as 0.4: choose one"):
        expand({"methods": {"a": {**row, "mu": 0.4}}}, "here")
    assert only({"methods": {"a": row}}).algorithm_options == {"mu": 0.2}


def test_options_of_a_column_win_one_by_one() -> None:
    """The column's table was all there was: what the top says of the other options was lost."""
    table: dict[str, Any] = {"loss": {"label_smoothing": 0.1, "ignore_index": 3}}
    column = {"columns": {"a": {"loss": {"label_smoothing": 0.2}}}}
    assert only({**table, **column}).loss_options == {"label_smoothing": 0.2, "ignore_index": 3}
    table = {"algorithm": {"name": "fedsmoo", "r": 0.05, "beta": 5}}
    assert only({**table, "columns": {"a": {"algorithm_options": {"r": 0.2}}}}).algorithm_options == {
        "r": 0.2,
        "beta": 5,
    }
    assert only(table, algorithm_options={"beta": 6}).algorithm_options == {"r": 0.05, "beta": 6}


def test_options_stay_with_what_they_are_options_of() -> None:
    """The 5 hidden units of the one model were those of the other, too."""
    table: dict[str, Any] = {"model": {"name": "mlp", "hidden": 5}}
    other = only({**table, "columns": {"a": {"model": "char_gru"}}})
    assert (other.model, other.model_options) == ("char_gru", {})
    same = only({**table, "columns": {"a": {"model": "mlp"}}})
    assert (same.model, same.model_options) == ("mlp", {"hidden": 5})
    assert only(table, model="softmax").model_options == {}
    unnamed = only({"local_optimizer": {"momentum": 0.5}, "columns": {"a": {"local_optimizer": "momentum"}}})
    assert unnamed.local_optimizer_options == {"momentum": 0.5}
    assert only({**table, "columns": {"a": {"model": {"name": "char_gru", "hidden": 7}}}}).model_options == {
        "hidden": 7
    }


def test_drawing_without_replacement_is_of_some_partitions() -> None:
    with pytest.raises(FedsmooError, match="replacement is False, but no partition of the sweep has it"):
        expand({"partition": ["classwise-0.5", "shards-2"], "replacement": False}, "here")
    assert len(expand({"partition": ["classwise-0.5", "iid"]}, "here").cells) == 2
    assert len(expand({"partition": ["classwise-0.5", "dirichlet"], "replacement": False}, "here").cells) == 2


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (
            {"cohort": 20},
            "cohort is 20, but each column of accuracy says its own cohort: write columns of yours, or set",
        ),
        ({"partition": "iid"}, "partition is 'iid', but each column of accuracy says its own partition"),
        ({"hyper": {"beta": 3}}, "beta is 3, but each column of accuracy says its own beta: write columns of yours$"),
        ({"hyper": 3}, "hyper is 3, but must be a table of settings"),
        ({"select": "iid"}, "select is 'iid', but must be a list of columns"),
        ({"select": [], "columns": {"a": {}}}, "both select and columns say which columns there are: choose one"),
    ],
)
def test_what_each_column_of_a_base_says_otherwise(own: dict[str, Any], says: str) -> None:
    with pytest.raises(FedsmooError, match=says):
        with_base({"base": "accuracy", **own})


def test_what_a_base_leaves_open_is_taken() -> None:
    found = with_base({"base": "accuracy", "rounds": 7, "hyper": {"r": 0.3}, "dataset": "digits", "columns": {"a": {}}})
    assert (found["rounds"], found["hyper"]["r"], found["dataset"]) == (7, 0.3, "digits")
    column = "10%-of-100 cifar10.dirichlet-0.6"
    assert with_base({"base": "accuracy", "select": [column], "cohort": 10})["columns"].keys() == {column}
    with pytest.raises(FedsmooError, match="select names columns of a base, but there is no base"):
        with_base({"select": ["a"]})


def test_the_tables_of_the_paper_say_nothing_in_vain() -> None:
    assert all(expand(description(name), name).cells for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the sweep file .*grid.toml is empty: say what to run"),
        ("# nothing yet\n", "is empty"),
        ("[methods]\n", "methods is empty: give it tables, such as .methods.NAME., or leave it out"),
        ("rounds = 1\n[columns]\n", "columns is empty"),
    ],
)
def test_a_grid_that_says_nothing_trains_nothing(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(FedsmooError, match=says):
        read_sweep(tmp_path / "grid.toml")
