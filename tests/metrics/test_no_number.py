"""A run whose leading metric is no number at the end: nowhere do the rounds before pass for its end."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedsmoo import Config
from fedsmoo.commands.console import end_in_words, end_score
from fedsmoo.commands.runs import cell
from fedsmoo.metrics.metric import make_metrics
from fedsmoo.metrics.quantity import quantity
from fedsmoo.pages.figures.base import Look
from fedsmoo.pages.figures.base import at_the_end as last_drawn
from fedsmoo.pages.figures.draw import sensitivity
from fedsmoo.pages.figures.rounds import scores
from fedsmoo.pages.figures.sources import drawable, find
from fedsmoo.pages.gather import gather
from fedsmoo.paper.cells import best, last, last_ten
from fedsmoo.runs.progress import test_in_words as in_words
from fedsmoo.runs.record import Record, last_mean, last_personal, last_score, lead_of, scores_of
from fedsmoo.runs.results.html import score_rows
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.results.summary import read_ending, summarise
from fedsmoo.sweeps.comparison import Comparison
from fedsmoo.sweeps.index import query
from fedsmoo.sweeps.paired import common_target, make_rows, row_cells
from fedsmoo.sweeps.queue import Outcome
from fedsmoo.sweeps.results import from_folder, from_json, to_json

GOOD = [8.0 - 0.5 * k for k in range(12)]  # the mean of the last ten is 4.75
LOST = [*GOOD[:9], None, None, None]  # as evaluations write what is not finite


def history(values: list[float | None], every: int = 1) -> list[Record]:
    """Rounds evaluated every so often, led by an error; a loss that is not finite stays what it is."""
    out = []
    for k, v in enumerate(values):
        for t in range(1, every + 1):
            measured = t == every
            loss = math.inf if v is None else v
            tested = {"metrics": {"mse": v}} if measured else {}
            spent = ([0], 10, 10, 1.0, 0.0)
            out.append(Record(every * k + t, None, loss if measured else None, 1.0, 0.1, 0.1, *spent, **tested))
    return out


def folder(root: Path, name: str, rounds: list[Record], **settings: object) -> Path:
    path = root / name
    path.mkdir(parents=True)
    config = {"rounds": len(rounds), "algorithm": "fedavg", "metrics": "mse", "model": "mlp", "dataset": "a.py:data"}
    config |= {"clients": 4, "cohort": 1, "lr": 0.1, **settings}
    (path / "config.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()))
    (path / "metrics.jsonl").write_text("".join(json.dumps(r.values()) + "\n" for r in rounds))
    (path / "summary.json").write_text(json.dumps(summarise(rounds, None)))
    (path / "started.json").write_text(json.dumps({"contents": {"dataset_content": "0" * 64}}))
    return path


def test_the_mean_of_the_last_ten_is_none_if_one_of_them_is() -> None:
    assert last_mean(scores_of(history(GOOD, 3))) == pytest.approx(4.75)
    assert math.isnan(last_mean(scores_of(history(LOST, 3))))
    assert last_mean(scores_of(history([None, *GOOD]))) == pytest.approx(4.75)  # it came back long before the end
    assert len(scores_of(history(LOST, 3))) == 12  # rounds that were not evaluated are none of them
    assert math.isnan(last_score(history(LOST)))
    assert lead_of(history([None, None])).name == "mse"
    assert in_words(history(LOST)[-1]) == "mean squared error no number"
    assert in_words(history(LOST, 2)[0]) is None


def test_a_summary_says_so() -> None:
    found = summarise(history(LOST), None)
    assert (found["score"], found["score_last10"], found["best_score"]) == (None, None, 4.0)
    assert (found["evaluations"], found["without_number"]) == (12, 3)
    assert json.loads(json.dumps(found["metrics"])) == {"mse": None}
    assert "without_number" not in summarise(history(GOOD), None)
    end = read_ending(found)
    assert (end.lead.name, end.last, end.last_ten) == ("mse", None, None)
    assert end_in_words(found) == "no mean: no number in 3 of the last ten evaluations; the last none"
    assert end_score(found) == "no number in 3 of the last ten evaluations"
    back = summarise(history([*GOOD[:8], None, 1.0]), None)
    assert end_in_words(back) == "no mean: no number in 1 of the last ten evaluations; the last 1.0000"


def test_a_result_says_so() -> None:
    result = Result(history(LOST), None, None)  # type: ignore[arg-type]
    assert math.isnan(result.score)
    assert result.metrics == {"mse": None}
    assert score_rows(result)["test mean squared error"] == "no number (round 12)"


def test_a_result_file_keeps_them(tmp_path: Path) -> None:
    run = from_folder(folder(tmp_path, "a", history(LOST, 2)))
    (tmp_path / "a.json").write_text(to_json(run))
    for each in (run, from_json(tmp_path / "a.json")):
        assert math.isnan(last_ten(each))
        assert math.isnan(last(each))
        assert best(each) == 4.0
        assert len(each.scores) == 12


def test_a_method_that_diverged_is_last_and_said_to_have(tmp_path: Path) -> None:
    runs = {
        "Lost": {0: history(LOST), 1: history(GOOD), 2: history(GOOD)},
        "Good": {s: history([v + 1 + 0.1 * s for v in GOOD]) for s in range(3)},
        "Fair": {s: history([v + 2 + 0.1 * s for v in GOOD]) for s in range(3)},
    }
    rows = make_rows(runs, 7.0)
    assert [r.method for r in rows if r.behind is None] == ["Good"]
    assert row_cells(rows[0])[:4] == ["Lost", "3", "nan", "+nan"]
    assert row_cells(rows[1])[2] == "5.8500 ± 0.1000"
    assert common_target(runs) == pytest.approx(6.5)  # a tenth above 5.85, up to two digits
    held = {m: {s: SimpleNamespace(history=h) for s, h in mine.items()} for m, mine in runs.items()}
    said = Comparison(Config(), held, Outcome(), None)  # type: ignore[arg-type]
    lines = "\n".join(said.notes)
    assert "(Lost, seed 0: no number in 3 of the last ten evaluations)" in lines
    assert "level" not in lines
    assert math.isnan(common_target({"Lost": {0: history(LOST)}}))


def test_the_index_says_so(tmp_path: Path) -> None:
    folder(tmp_path, "lost", history(LOST))
    (row,) = query(tmp_path)
    assert (row["metric"], row["score"], row["score_last10"], row["best_score"]) == ("mse", None, None, 4.0)
    assert cell("score", row["score"], row) == cell("score_last10", None, row) == "no number"


def test_pages_and_figures_say_so(tmp_path: Path) -> None:
    path = folder(tmp_path, "lost", history(LOST, 2))
    folder(tmp_path, "good", history(GOOD, 2), lr=0.2)
    (tmp_path / "lost.json").write_text(to_json(from_folder(path)))
    places = [19, 21, 23]
    for run in (gather([path])["runs"][0], drawable(find([tmp_path / "lost.json"]))["runs"][0]):
        assert run["none"] == places
        assert math.isnan(last_drawn(run))
    data = drawable(find([tmp_path / "lost", tmp_path / "good"]))
    assert "none" not in next(r for r in data["runs"] if r["name"] == "good")
    labels = [line.get_label() for line in scores(data, Look()).axes[0].get_lines()]
    assert "FedAvg (lr=0.1) (no number at the end)" in labels
    assert "FedAvg (lr=0.2)" in labels
    drawn = sensitivity(data, Look(over="lr")).axes[0]
    assert drawn.get_legend_handles_labels()[1] == ["FedAvg (some have no number at the end)"]
    means = drawn.get_lines()[0].get_ydata()
    assert math.isnan(means[0])
    assert means[1] == pytest.approx(2.5)


def test_the_best_of_some_values_is_a_number() -> None:
    assert quantity("mse").best([math.nan, 3.0, 2.0, math.nan]) == 2.0
    assert quantity("accuracy").best([math.nan]) is None


def test_personal_models_that_diverged_are_not_those_of_a_round_before() -> None:
    rounds = [
        Record(t, 0.5, 1.0, 1.0, 0.1, 0.1, [0], 10, 10, 1.0, 0.0, personal_accuracy=0.9, personal_worst_tenth=0.8)
        for t in (1, 2)
    ]
    assert last_personal(rounds) == {"personal_accuracy": 0.9, "personal_worst_tenth": 0.8}
    lost = replace(rounds[1], personal_accuracy=None, personal_worst_tenth=None)
    assert last_personal([rounds[0], lost]) == {}
    unevaluated = Record(3, None, None, 1.0, 0.1, 0.1, [0], 10, 10, 1.0, 0.0)
    assert last_personal([*rounds, unevaluated]) == last_personal(rounds)


def test_clients_of_an_error_are_not_told_in_per_cent() -> None:
    row = {"metric": "mse", "state": "finished", "personal_accuracy": None}
    assert cell("personal_worst_tenth", 0.25, row) == "0.2500"
    assert cell("personal_worst_tenth", 0.25, {**row, "metric": "accuracy", "personal_accuracy": 0.5}) == "25.00%"


@pytest.mark.parametrize("name", ["accuracy", "top-2", "f1", "f1-micro"])
def test_outputs_that_are_nan_are_wrong_answers(name: str) -> None:
    """Though PyTorch takes a NaN for the largest: of mostly one class, a model that diverged would seem to be good."""
    y = torch.tensor([0] * 9 + [1, 2])
    sound = torch.nn.functional.one_hot(y, 3).float()
    (metric,) = make_metrics(name, classes=3)
    assert metric.sums is not None

    def score(out: torch.Tensor) -> float:
        return metric.value(metric.sums(out, y).numpy(), len(y))  # type: ignore[misc]

    assert score(sound) == 1.0
    assert score(torch.full((11, 3), math.nan)) == 0.0
    partly = sound.clone()
    partly[0, 2] = math.nan  # one of the nine
    classes = [(2 * 8 / (9 + 8)), 1.0, 1.0]  # F1 of each: right answers, twice, over samples there and said
    truth = {"f1": sum(classes) / 3, "f1-micro": 2 * 10 / (11 + 10)}.get(name, 10 / 11)
    assert score(partly) == pytest.approx(truth)


def test_labels_of_which_nothing_is_said_are_not_said_right() -> None:
    """A sample without any label would be right wherever no output is above 0, and NaN never is."""
    y = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    (metric,) = make_metrics("accuracy", target="labels")
    assert metric.sums is not None
    out = torch.where(y > 0, 1.0, -1.0)
    assert metric.value(metric.sums(out, y).numpy(), 3) == 1.0
    out[0, 1] = math.nan
    assert metric.value(metric.sums(out, y).numpy(), 3) == pytest.approx(2 / 3)
    assert metric.value(metric.sums(out * math.nan, y).numpy(), 3) == 0.0
