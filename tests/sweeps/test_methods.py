"""Methods of a comparison as people write them: names with options, methods that were made, mappings."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsmoo
from fedsmoo import FedAvg, FedProx, FedSMOO, FedsmooError
from fedsmoo.sweeps.methods import labels, methods_of, parse_methods

QUICK = {"model": "softmax", "clients": 4, "cohort": 2, "rounds": 2, "local_steps": 1, "device": "cpu"}


def read(text: str) -> list[tuple[str, dict[str, str]]]:
    return [(entry.name, entry.options) for entry in parse_methods(text)]


def test_options_follow_a_colon_and_commas_part_them() -> None:
    assert read("fedavg") == [("fedavg", {})]
    assert read("fedavg, fedprox:mu=0.1 ,fedsmoo:r=0.03, beta=10") == [
        ("fedavg", {}),
        ("fedprox", {"mu": "0.1"}),
        ("fedsmoo", {"r": "0.03", "beta": "10"}),
    ]
    assert read("a/mine.py:Mine:k=2,fedavg:lr=1e-3") == [("a/mine.py:Mine", {"k": "2"}), ("fedavg", {"lr": "1e-3"})]
    assert read("a/mine.py:Mine") == [("a/mine.py:Mine", {})]


def test_schedules_have_colons_and_quotes_keep_commas() -> None:
    assert read("fedsmoo:r=linear:0:0.1:200") == [("fedsmoo", {"r": "linear:0:0.1:200"})]
    assert read("fedper:head='fc.*,norm*',fedavg") == [("fedper", {"head": "fc.*,norm*"}), ("fedavg", {})]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mu=0.1,fedprox", "'mu=0.1,fedprox' begins with an option: name its method first, such as 'fedprox:mu=0.1'"),
        ("fedprox:mu=", "'fedprox:mu=': mu of fedprox has no value"),
        ("fedprox:mu=1,mu=2", "mu of fedprox is given twice"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, says: str) -> None:
    with pytest.raises(FedsmooError) as e:
        parse_methods(text)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_labels_repeat_what_stands_beside_a_name() -> None:
    assert labels(parse_methods("fedavg,fedprox:mu=0.1,fedprox:mu=1")) == ["FedAvg", "FedProx mu=0.1", "FedProx mu=1"]
    assert labels(methods_of([FedAvg(), FedProx(mu=0.1), FedSMOO()])) == ["FedAvg", "FedProx mu=0.1", "FedSMOO"]
    assert labels(methods_of({"fedavg": {}, "fedsmoo": {"r": 0.05}})) == ["FedAvg", "FedSMOO"]  # as it always was
    with pytest.raises(FedsmooError, match="twice"):
        labels(parse_methods("fedprox:mu=1,fedprox:mu=1"))


def test_methods_that_are_not_settings_are_told_to_be_a_list() -> None:
    with pytest.raises(
        FedsmooError, match=r"must be a mapping, or \{\}: methods themselves are a list, \['fedavg', ...\]"
    ):
        methods_of({"ours": "fedavg"})
    with pytest.raises(FedsmooError, match=r"methods themselves are a list, \[FedProx\(mu=0.1\), ...\]"):
        methods_of({"ours": FedProx(mu=0.1)})


def test_an_option_reaches_its_method_and_no_other(tmp_path: Path) -> None:
    """The runs are those that the methods make alone, and two rows of one method have folders of their own."""
    found = fedsmoo.compare(["fedavg", "fedprox:mu=10", FedProx(mu=1.0)], out=tmp_path / "c", **QUICK)
    assert sorted(p.name for p in (tmp_path / "c").iterdir() if p.is_dir()) == [
        "fedavg-seed0",
        "fedprox-mu-1.0-seed0",
        "fedprox-mu-10-seed0",
    ]
    made = {"FedAvg": FedAvg(), "FedProx mu=10": FedProx(mu=10.0), "FedProx mu=1.0": FedProx(mu=1.0)}
    plain = {n: v for n, v in QUICK.items() if n != "model"}
    for label, method in made.items():
        alone = fedsmoo.simulate("softmax", "digits", method, engine=found.config.engine, **plain)
        ours = found.runs[label][0].history
        assert [r.test_loss for r in ours] == [r.test_loss for r in alone.history], label


def test_the_same_method_twice_is_refused_however_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(FedsmooError, match=r"FedProx mu=1 and FedProx mu=1.0 are the same method"):
        fedsmoo.compare("fedprox:mu=1,fedprox:mu=1.0", out=tmp_path / "c", **QUICK)
    assert not (tmp_path / "c").exists()
