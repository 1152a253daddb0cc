"""Tables, the index, results, the page and the command line where less is better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedsmoo
from fedsmoo import FedsmooError
from fedsmoo.commands.run import score_lines
from fedsmoo.commands.runs import show_ledger
from fedsmoo.metrics.quantity import quantity
from fedsmoo.pages.gather import gather
from fedsmoo.runs.record import Record
from fedsmoo.runs.traffic import first_reached
from fedsmoo.sweeps.index import query
from fedsmoo.sweeps.paired import common_target, make_rows
from fedsmoo.sweeps.results import from_folder, from_json, to_json

from .own import OWN

SETTINGS: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 6, "local_steps": 2, "batch_size": 8, "device": "cpu"}


def records(values: list[float], name: str = "mse", lower: tuple[str, ...] = ()) -> list[Record]:
    """Return rounds with the values of a metric."""
    return [
        Record(k + 1, None, v, v, 0.1, 0.1, [0], 10, 10, 1.0, 0.0, metrics={name: v}, lower=list(lower))
        for k, v in enumerate(values)
    ]


def test_the_best_of_an_error_is_the_smallest() -> None:
    runs = {"good": {0: records([4.0, 2.0, 1.0])}, "bad": {0: records([5.0, 4.0, 3.0])}}
    rows = make_rows(runs, 2.0)
    assert [r.behind is None for r in rows] == [True, False]
    assert rows[1].behind is not None
    assert rows[1].behind.mean == pytest.approx(4.0 - 7 / 3)
    assert [(r.rounds, r.bytes, r.reached) for r in rows] == [(2, 40, 1), (None, None, 0)]
    assert common_target(runs) == pytest.approx(2.6)  # a tenth above 7/3, up to two digits
    assert first_reached(runs["good"][0], 1.5) is not None
    assert first_reached(runs["bad"][0], 1.5) is None


def test_the_best_of_nothing_is_nothing() -> None:
    assert quantity("mse").best([]) is quantity("accuracy").best([]) is None
    assert (quantity("mse").best([3.0, 2.0, 4.0]), quantity("accuracy").best([0.3, 0.4])) == (2.0, 0.4)


def test_every_number_of_a_round_has_its_name() -> None:
    found = records([0.5])[0].numbers()
    assert (found["round"], found["mse"]) == (1, 0.5)


def test_an_own_metric_says_itself_which_way_is_up() -> None:
    up, down = records([1.0, 2.0], "f"), records([1.0, 2.0], "f", ("f",))
    assert [r.reached(1.5) for r in up] == [False, True]
    assert [r.reached(1.5) for r in down] == [True, False]
    assert make_rows({"a": {0: records([1.0], "f")}, "b": {0: records([2.0], "f")}}, 1.0)[1].behind is None
    assert (
        make_rows({"a": {0: records([1.0], "f", ("f",))}, "b": {0: records([2.0], "f", ("f",))}}, 1.0)[0].behind is None
    )


@pytest.mark.parametrize(
    ("name", "best", "target"),
    [("accuracy", 0.7, 0.63), ("mse", 0.112, 0.13), ("mse", 1000.0, 1100.0), ("r2", 0.5, 0.45), ("r2", -0.5, -0.55)],
)
def test_a_fair_target_is_a_tenth_worse(name: str, best: float, target: float) -> None:
    assert quantity(name).nearly(best) == pytest.approx(target)


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("compare")
    (home / "own.py").write_text(OWN)
    given = {**SETTINGS, "model": "softmax", "dataset": f"{home}/own.py:data", "metrics": "mse,r2", "holdout": 0.2}
    return fedsmoo.compare(["fedavg", "fedprox:mu=5"], seeds=[0, 1], out=home / "runs", config=given)


def test_a_comparison_by_an_error(compare: Any) -> None:
    header = compare.table[0]
    assert "mean squared error, last 6" in header
    assert "%" not in header
    assert "lower is better" in compare.notes[0]
    best = min(compare.rows, key=lambda r: r.score)
    assert best.behind is None
    assert f"{best.score:.4f}" in compare.text
    assert compare.target > best.score
    assert "mse" in compare.frame.columns


def test_results_and_the_index_of_such_runs(compare: Any, tmp_path: Path) -> None:
    root = Path(compare.out)
    rows = [r for r in query(root) if r["state"] == "finished"]
    assert {r["metric"] for r in rows} == {"mse"}
    run = next(iter(compare.runs.values()))[0]
    row = next(r for r in rows if (root / r["path"]).resolve() == run.path.resolve())
    assert row["score"] == run.history[-1].metrics["mse"]
    assert row["test_accuracy"] is None
    found = from_folder(run.path)
    (tmp_path / "one.json").write_text(to_json(found))
    again = from_json(tmp_path / "one.json")
    assert again.lead.name == "mse"
    assert again.scores == pytest.approx([r.metrics["mse"] for r in run.history], rel=1e-7)
    assert again.history[-1].validation == pytest.approx(run.history[-1].validation_metrics["mse"], rel=1e-7)


def test_the_page_knows_what_leads(compare: Any, tmp_path: Path) -> None:
    runs = [run for mine in compare.runs.values() for run in mine.values()]
    data = gather([run.path for run in runs])
    for shown, run in zip(data["runs"], runs, strict=True):
        assert shown["lead"]["title"] == "test mean squared error"
        assert (shown["lead"]["percent"], shown["lead"]["higher"]) == (False, False)
        assert shown["acc"] == pytest.approx([r.metrics["mse"] for r in run.history], rel=1e-6)
        assert shown["val"] == pytest.approx([r.validation_metrics["mse"] for r in run.history], rel=1e-6)
        assert shown["task"].endswith("by mean squared error")


def test_what_a_run_prints(compare: Any) -> None:
    run = next(iter(compare.runs.values()))[0]
    lines = score_lines(run.summary)
    assert lines[0].startswith("test mean squared error ")
    assert any(line.startswith("test R²") for line in lines)
    assert any(line.startswith("by validation") for line in lines)
    assert not any("%" in line for line in lines)
    plain = score_lines({"test_accuracy": 0.5, "test_accuracy_last10": 0.25, "evaluations": 12, "test_loss": 1.0})
    assert plain == [
        "test accuracy   25.00% (mean of the last ten evaluations; the last 50.00%)",
        "test loss       1.0000",
    ]


def test_a_target_of_the_ledger_is_one_of_what_leads(compare: Any) -> None:
    from fedsmoo.runs.record import lead_of

    run = next(iter(compare.runs.values()))[0]
    lead_of(run.history).refuse_target(80.0)
    with pytest.raises(FedsmooError, match="target is 80, but is an accuracy between 0 and 1"):
        quantity("accuracy").refuse_target(80)


def test_a_target_of_runs_that_are_compared_by_several_metrics_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("accuracy", "f1"):
        fedsmoo.run({**SETTINGS, "model": "softmax", "algorithm": "fedavg", "metrics": name}, out=tmp_path / name)
    capsys.readouterr()
    for names, by in ((("accuracy", "f1"), ["accuracy", "F1 score"]), (("f1",), [])):
        show_ledger([tmp_path / name for name in names], target=0.01)
        header, _, *rows = capsys.readouterr().out.splitlines()[1:]
        assert ("compared by  round of 0.01" in header) == bool(by)
        assert all(title in row for title, row in zip(by, rows, strict=False))


def test_an_edited_metric_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsmoo.runs.config import Config
    from fedsmoo.runs.origin.identity import identity
    from fedsmoo.runs.origin.trust import code_in

    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def f(outputs, targets):\n    return 1.0\n")
    config = Config(metrics="accuracy,-mine.py:f")
    before = identity(config)
    assert [str(code.path) for code in code_in(config)] == ["mine.py"]
    Path("mine.py").write_text("def f(outputs, targets):\n    return 2.0\n")
    assert identity(config) != before
    assert identity(Config()) == identity(Config(metrics=None))
    assert json.dumps(Config(metrics=["accuracy", "f1"]).to_dict()["metrics"]) == '"accuracy,f1"'
