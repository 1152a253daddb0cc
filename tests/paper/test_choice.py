"""Parts of the paper's tables by name: columns, methods, rounds."""

from __future__ import annotations

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.paper.experiments import experiment
from fedsmoo.paper.tables import Grid, communication, paper_accuracy
from fedsmoo.sweeps.bases import description

from .small import fake_result


def columns(name: str, *wanted: str) -> list[str]:
    return list(dict.fromkeys(c.column for c in experiment(name, wanted).cells))


@pytest.mark.parametrize("setting", ["local epochs", "beta", "r", "lr decay"])
def test_a_setting_chooses_the_columns_of_all_its_values(setting: str) -> None:
    there = list(description("sensitivity")["columns"])
    assert len(there) == 13
    found = columns("sensitivity", setting)
    assert found == [n for n in there if n.rpartition(" ")[0] == setting]
    assert len(found) >= 3


def test_several_words_choose_what_any_of_them_names() -> None:
    assert columns("accuracy", "pathological-3", "pathological-20") == [
        "10%-of-100 cifar10.pathological-3", "10%-of-100 cifar100.pathological-20",
        "5%-of-200 cifar10.pathological-3", "5%-of-200 cifar100.pathological-20",
    ]  # fmt: skip
    assert len(columns("accuracy", "5%-of-200 cifar100")) == 4
    assert len(columns("accuracy")) == 16
    methods = {c.method for c in experiment("accuracy", ["cifar10"], ["fedavg", "FedSMOO"]).cells}
    assert methods == {"FedAvg", "FedSMOO"}
    with pytest.raises(FedsmooError, match="unknown column"):
        columns("accuracy", "cifar10", "cifar11")


def test_a_share_of_the_rounds_is_at_least_one() -> None:
    assert {c.config.rounds for c in experiment("ablation", scale=0.01).cells} == {8}
    assert {c.config.rounds for c in experiment("ablation", scale=1e-6).cells} == {1}
    short = experiment("ablation", scale=0.5, overrides={"rounds": 30})
    assert {c.config.rounds for c in short.cells} == {15}
    assert "0.5 of the paper's rounds" in short.title
    assert any("rounds = 15" in note for note in short.about["notes"])


def test_what_the_paper_does_not_print_is_blank() -> None:
    assert paper_accuracy("10%-of-100 cifar10.pathological-3", "FedSMOO") == (81.58, 0.16)
    assert paper_accuracy("10%-of-100 cifar10.pathological-3", "FedProx") == (None, None)
    assert paper_accuracy("10%-of-100 cifar10.iid", "FedSMOO") == (None, None)
    assert paper_accuracy("50%-of-100 cifar10.pathological-3", "FedSMOO") == (None, None)


def test_a_run_that_does_not_say_its_size_sends_what_it_sent() -> None:
    """FedAvg sends one vector each way: 800 rounds to 80 per cent reach 74 in round 740, 10 clients, 4,000 bytes."""
    sweep = experiment("communication", methods=["FedAvg"])
    (cell,) = sweep.cells
    result = fake_result(cell.config, 80.0)
    for facts, full in ((result.facts, 2.64), ({}, 1.0)):
        run = type(result)(result.config, result.curve, facts)
        (table,) = communication(Grid(sweep, {cell.identity: run}), "bytes")
        sent = 740 * 10 * 2 * 4000
        assert table.rows[0][2:7] == ["740", f"{sent / 1e6:.1f} MB", f"{full * sent / 1e6:.1f} MB", "1.00", "1.00"]


def test_what_made_the_numbers_is_said_in_order() -> None:
    """Two GPUs and a CPU: of products there is talk where they were made on a GPU, and all names are sorted."""
    precisions = ["tf32", "bf16", "fp32", "tf32"]
    sweep = experiment("communication", methods=["FedAvg"], seeds=[0, 1, 2, 3])
    found = {}
    for k, cell in enumerate(sweep.cells):
        result = fake_result(cell.config.replace(precision=precisions[k]), 80.0)
        facts = {
            "device": f"device {9 - k}",
            "device_type": "cpu" if k == 3 else "cuda",
            "versions": {"torch": f"2.{k}"},
        }
        found[cell.identity] = type(result)(result.config, result.curve, facts)
    text = Grid(sweep, found).footnotes()[-1]
    assert "on device 6, device 7, device 8, device 9 with torch 2.0, 2.1, 2.2, 2.3" in text
    assert "products in bf16, fp32, tf32" in text
    assert text.endswith("seeds 0, 1, 2, 3.")
    alone = {sweep.cells[3].identity: found[sweep.cells[3].identity]}
    assert "products" not in Grid(sweep, alone).footnotes()[-1]
    assert Grid(sweep, {}).footnotes()[-1] == "Nothing measured yet."
