"""An option that is given in two ways with two values is refused: one of them would be lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsmoo
from fedsmoo import FedAvg, FedProx, FedsmooError
from fedsmoo.commands.options import gather_config
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.sweeps.methods import methods_of


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["loss.label_smoothing=0.1", "label_smoothing=0.2"],
            r"loss.label_smoothing is given twice, as 0.1 and as 0.2",
        ),
        (
            ["label_smoothing=0.2", "loss.label_smoothing=0.1"],
            r"loss.label_smoothing is given twice, as 0.2 and as 0.1",
        ),
        (["r=0.2", "algorithm.r=0.3"], "algorithm.r is given twice, as 0.2 and as 0.3: choose one"),
        (["model.hidden=3", "hidden=4"], "model.hidden is given twice, as 3 and as 4: choose one"),
    ],
)
def test_by_its_name_and_by_its_owner(words: list[str], says: str) -> None:
    with pytest.raises(FedsmooError, match=says):
        gather_config(None, words, {})


def test_the_same_number_in_two_spellings_is_no_contradiction() -> None:
    assert gather_config(None, ["r=0.2", "algorithm.r=0.20"], {}).algorithm_options == {"r": 0.2}
    assert make_config({"algorithm": {"name": "fedprox", "mu": 0.1}, "algorithm_options": {"mu": 0.1}})


def test_in_a_table_and_among_options_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("loss_options = {label_smoothing = 0.1}\n[loss]\nlabel_smoothing = 0.2\n")
    with pytest.raises(FedsmooError, match=r"a\.toml: loss\.label_smoothing is given twice, as 0.1 and as 0.2: choose"):
        make_config(file)
    file.write_text("model_options = {hidden = 4}\n[loss]\nlabel_smoothing = 0.2\n")
    assert make_config(file, {"label_smoothing": 0.3}).loss_options == {"label_smoothing": 0.3}  # as flags do


def test_beside_a_method_whose_label_says_it() -> None:
    """The row would be called mu=0.1 and be trained with 0.2."""
    for given in ({"fedprox:mu=0.1": {"mu": 0.2}}, {FedProx(mu=0.1): {"mu": 0.2}}):
        with pytest.raises(FedsmooError, match=r"fedprox\.mu is given twice, as '?0\.1'? and as 0\.2: choose one"):
            methods_of(given)  # type: ignore[arg-type]
    assert [entry.options for entry in methods_of({"fedprox:mu=0.1": {"mu": 0.1, "lr": 1}, "fedavg": {}})] == [
        {"mu": 0.1, "lr": 1},
        {},
    ]
    assert methods_of([FedAvg()])[0].options == {}


def test_to_simulate() -> None:
    with pytest.raises(FedsmooError, match=r"loss\.label_smoothing is given twice, as 0\.1 and as 0\.2"):
        fedsmoo.simulate("softmax", label_smoothing=0.1, **{"loss.label_smoothing": 0.2})
