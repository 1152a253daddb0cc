"""Methods with options of their own in ``compare``, and what tells runs apart in ``runs``, ``ledger`` and pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsmoo.pages.figures.sources import drawable, find
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.reader import read_config, read_label
from fedsmoo.sweeps import METHODS
from fedsmoo.sweeps.index import differing_settings

from .conftest import TINY, Answer, Call

LABELS = ["FedProx mu=0.1", "FedSMOO r=0.03 beta=5", "FedProx mu=1"]


def columns(answer: Answer, *names: str) -> list[tuple[str, ...]]:
    """Some columns of a table as text, by where their headings end."""
    _, header, rule, *rows = answer.out.splitlines()
    ends = [sum(map(len, rule.split("  ")[: k + 1])) + 2 * k for k in range(len(rule.split("  ")))]
    cut = [[line[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)] for line in (header, *rows)]
    return [
        tuple(row[cut[0].index(n)] for n in names) for row in cut[1:] if row[0] and not row[0].startswith("in comm")
    ]


def test_options_of_one_method_stand_beside_its_name_and_are_its_label_everywhere(call: Call, tmp_path: Path) -> None:
    answer = call("compare", "fedprox:mu=0.1,fedsmoo:r=0.03,beta=5", "fedprox:mu=1", *TINY, "--lr", "0.05")
    assert answer.code == 0, answer.err
    table = answer.out.splitlines()
    assert [line[:21].strip() for line in table[1:4]] == LABELS
    root = tmp_path / "runs" / "compare"
    options = {read_label(p): read_config(p).algorithm_options for p in root.glob("*-seed0")}
    assert options == {LABELS[0]: {"mu": 0.1}, LABELS[1]: {"r": 0.03, "beta": 5.0}, LABELS[2]: {"mu": 1.0}}
    assert {read_config(p).lr for p in root.glob("*-seed0")} == {0.05}
    answer = call("runs")
    assert columns(answer, "label", "algorithm", "mu", "r", "beta") == [
        (LABELS[0], "fedprox", "0.1", "", ""),
        (LABELS[2], "fedprox", "1", "", ""),
        (LABELS[1], "fedsmoo", "", "0.03", "5"),
    ]
    assert answer.out.splitlines()[-1] == "in common: data_used digits, partition dirichlet, lr 0.05, seed 0"
    answer = call("ledger", "runs")
    assert columns(answer, "run", "label", "vectors up", "down") == [
        ("fedprox-mu-0.1-seed0", LABELS[0], "1", "1"),
        ("fedprox-mu-1-seed0", LABELS[2], "1", "1"),
        ("fedsmoo-r-0.03-beta-5-seed0", LABELS[1], "2", "2"),
    ]
    one = call("ledger", "runs/compare/fedprox-mu-1-seed0", "runs/compare/fedsmoo-r-0.03-beta-5-seed0")
    assert one.out.splitlines()[3:] == answer.out.splitlines()[4:]
    assert {run["group"] for run in drawable(find([root]))["runs"]} == set(LABELS)
    again = call("compare", "fedprox:mu=1", "fedprox:mu=0.1", "fedsmoo:r=0.03,beta=5", *TINY, "--lr", "0.05")
    assert again.code == 0
    assert "1 done before" in again.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedavg", "--algorithms", "fedsam"], "methods are given twice, as fedavg and as --algorithms fedsam"),
        (["mu=3"], "'mu=3' begins with an option: name its method first"),
        (["fedprox:mu=0.1,mu=1"], "mu of fedprox is given twice"),
        (["fedavg", "fedavg"], "names 'fedavg' twice"),
        (
            ["fedprox:nu=0.1"],
            "unknown setting 'nu': did you mean 'mu'? fedprox has lr_server, mu; loss auto has ignore_index, "
            "label_smoothing, weights; or any setting of a run",
        ),
        (
            ["fedavg", "fedprox", "--set", "nu=1"],
            "did you mean 'mu'? fedavg has lr_server; fedprox has lr_server, mu; ",
        ),
        (["fedavg", "fedprox", "--set", "batchsize=1"], "unknown setting 'batchsize': did you mean 'batch_size'? fed"),
        (["one.toml", "two.toml"], "one.toml and two.toml are two config files"),
        (["missing.toml", "fedavg"], "cannot read the config file missing.toml"),
    ],
)
def test_words_that_are_no_comparison_are_refused_in_one_line(words: list[str], message: str, call: Call) -> None:
    answer = call("compare", *words, *TINY)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_an_option_of_the_model_or_the_loss_is_for_all_methods(call: Call, tmp_path: Path) -> None:
    assert call("compare", "fedavg", "fedprox", *TINY, "--set", "loss.label_smoothing=0.1").code == 0
    found = [read_config(p).loss_options for p in (tmp_path / "runs" / "compare").glob("*-seed0")]
    assert found == 2 * [{"label_smoothing": 0.1}]


def test_a_config_file_may_stand_anywhere_among_the_methods(call: Call, tmp_path: Path) -> None:
    (tmp_path / "settings").write_text("lr = 0.03\n")
    (tmp_path / "fedavg").mkdir()  # the name of a method is that, whatever lies here
    assert call("compare", "fedavg", "settings", "fedsam", *TINY).code == 0
    assert {p.name: read_config(p).lr for p in (tmp_path / "runs" / "compare").glob("*-seed0")} == {
        "fedavg-seed0": 0.03, "fedsam-seed0": 0.03
    }  # fmt: skip


def test_a_method_of_the_config_file_is_compared_too_or_said_to_be_left_out(call: Call, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('lr = 0.03\nalgorithm = {name = "fedprox", mu = 0.5}\n')
    assert call("compare", "b.toml", *TINY).code == 0
    configs = {p.name: read_config(p) for p in (tmp_path / "runs" / "compare").glob("*-seed0")}
    assert {*configs} == {f"{name}-seed0" for name in (*METHODS.split(","), "fedprox")}
    assert configs["fedprox-seed0"].algorithm_options == {"mu": 0.5}
    left = "b.toml: its algorithm 'fedprox' is not among the methods named, fedavg, and left out"
    assert left in call("compare", "fedavg", "b.toml", *TINY).err
    assert "left out" not in call("compare", "FedProx", "b.toml", *TINY).err


def test_settings_that_differ_by_hand() -> None:
    def row(state: str = "finished", **settings: object) -> dict[str, object]:
        config = Config(**{k: v for k, v in settings.items() if k != "options"})  # type: ignore[arg-type]
        plain = {n: v for n, v in vars(config).items() if not n.endswith("_options")}
        options = settings.get("options", "{}")
        return {**plain, "data_used": config.dataset, "state": state, "options": options, "changes": None}

    rows = [row(lr=0.1, engine="serial"), row(lr=0.2, options=json.dumps({"r": 1}))]
    assert differing_settings(rows) == {"lr": [0.1, 0.2], "r": [None, 1]}
    assert differing_settings([*rows, row("unreadable", clients=3)]) == {"lr": [0.1, 0.2, 0.1], "r": [None, 1, None]}
    assert differing_settings([row(options="not JSON"), row(options="[1]")]) == {}
    assert differing_settings([]) == {}
