"""The paper's tables from results whose numbers are known."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.paper.cells import Grid
from fedsmoo.paper.document import update, updated
from fedsmoo.paper.experiments import experiment, published
from fedsmoo.paper.render import FORMATS, Table, render
from fedsmoo.paper.reproduce import build, table
from fedsmoo.paper.selection import Selection
from fedsmoo.paper.tables import curves, evaluation_seconds
from fedsmoo.runs.origin.identity import identity
from fedsmoo.sweeps.bases import EXPERIMENTS, description
from fedsmoo.sweeps.results import collect, from_json, to_json

from .small import fake_result, write_results

PATHOLOGICAL = "10%-of-100 cifar10.pathological-3"
ACCURACIES = {"FedAvg": 74.0, "SCAFFOLD": 80.0, "FedCM": 80.0, "FedSMOO": 80.0}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_results(tmp_path / "results", ACCURACIES, PATHOLOGICAL)
    return tmp_path / "results"


def rows(name: str, results: Path, **wish) -> dict[str, dict[str, str]]:
    made = build(Selection(name, **wish).sweep(), collect((), results))
    lines = list(csv.reader(io.StringIO(render(made, "csv"))))
    return {line[1]: dict(zip(lines[0][2:], line[2:], strict=True)) for line in lines[1:]}


def test_the_experiments_say_what_the_paper_says() -> None:
    settings = published()["settings"]
    for cell in experiment("accuracy").cells:
        c = cell.config
        data = settings[c.dataset]
        assert (c.model, c.rounds, c.lr, c.weight_decay) == (
            settings["model"], settings["rounds"], settings["lr"], settings["weight_decay"]
        )  # fmt: skip
        assert (c.batch_size, c.epochs) == (data["batch_size"], data["local_epochs"])
        assert c.lr_decay == (0.9995 if cell.method in ("FedDyn", "FedSMOO") else settings["lr_decay"])
        if cell.method in ("FedDyn", "FedSMOO"):
            assert c.algorithm_options["beta"] == settings[f"beta_{c.dataset}"]
        if cell.method in ("FedCM", "MoFedSAM"):
            assert c.algorithm_options["alpha"] == settings["alpha"]
        if cell.method in ("FedSAM", "MoFedSAM"):
            assert c.algorithm_options["rho"] == 0.01
        if cell.method == "FedSMOO":
            assert c.algorithm_options["r"] == settings["r"]
        assert f"{100 * c.cohort // c.clients}%-of-{c.clients} {c.dataset}.{c.partition}" == cell.column
    blocks = published()["accuracy"]
    printed = [f"{who} {task}" for who, block in blocks.items() for task in block["columns"]]
    assert list(description("accuracy")["columns"]) == printed
    assert len(experiment("accuracy").configs) == 8 * 16


def test_tables_of_the_same_runs_share_them() -> None:
    known = {identity(c) for c in experiment("accuracy").configs}
    for name in ("rounds", "communication", "wallclock", "curves", "flatness"):
        assert {identity(c) for c in experiment(name).configs} <= known
    assert len({identity(c) for c in experiment("ablation").configs} - known) == 1
    assert len({identity(c) for c in experiment("sensitivity").configs} - known) == 13 - 4  # the usual values are known


def test_accuracy_stands_beside_the_paper(results: Path) -> None:
    table = rows("accuracy", results, columns=(PATHOLOGICAL,))
    # The mean of the last ten of 800 rounds of a straight line to 80 is 80 (1 - 4.5 / 800).
    assert table["FedSMOO"] == {
        "n": "1", "last ten": "79.55", "last round": "80.00", "best on test": "80.00",
        "paper's best": "81.58 ± 0.16", "− paper's": "-1.58",
    }  # fmt: skip
    assert table["FedDyn"] == {
        "n": "", "last ten": "", "last round": "", "best on test": "",
        "paper's best": "77.63 ± 0.14", "− paper's": "",
    }  # fmt: skip


def test_a_mean_of_fewer_than_ten_rounds_says_so(tmp_path: Path) -> None:
    """A two-hundredth of 800 rounds is four: a line to 80 has the mean 80 (1 + 2 + 3 + 4) / 16 = 50."""
    tables = {"accuracy": (PATHOLOGICAL,), "ablation": (), "sensitivity": (), "flatness": ()}
    for name, columns in tables.items():
        sweep = Selection(name, columns=columns, scale=4 / 800).sweep()
        found = {c.identity: fake_result(c.config, 80.0) for c in sweep.cells}
        text = render(build(sweep, found), "csv") + render(build(sweep, found), "text")
        assert "last ten" not in text.replace("over the last ten rounds (over all of a run that has fewer)", ""), name
        if name != "flatness":
            assert "last 4" in text
            assert "50.00" in text
    # Runs of several lengths in one table: the heading fits all of them.
    sweep = Selection("accuracy", columns=(PATHOLOGICAL,)).sweep()
    lengths = {c.identity: fake_result(c.config.replace(rounds=4 + 800 * k), 80.0) for k, c in enumerate(sweep.cells)}
    assert "last ten (or all)" in render(build(sweep, lengths), "csv")


def test_several_seeds_have_error_bars(tmp_path: Path) -> None:
    write_results(tmp_path, {"FedAvg": 70.0}, PATHOLOGICAL, seeds=(0, 1, 2))
    table = rows("accuracy", tmp_path, columns=(PATHOLOGICAL,), methods=("fedavg",), seeds=(0, 1, 2))
    assert table["FedAvg"]["last round"] == "71.00 ± 1.00"
    assert table["FedAvg"]["− paper's"] == "-3.08"


def test_rows_of_other_seeds_are_named_and_fewer_seeds_are_counted(tmp_path: Path) -> None:
    other = "10%-of-100 cifar10.dirichlet-0.1"
    write_results(tmp_path, {"FedAvg": 70.0, "FedCM": 70.0, "FedSAM": 70.0}, PATHOLOGICAL)
    write_results(tmp_path, {"FedDyn": 76.0}, PATHOLOGICAL, seeds=(0, 1))
    write_results(tmp_path, {"SCAFFOLD": 73.0}, PATHOLOGICAL, seeds=(0, 2))
    write_results(tmp_path, {"FedSMOO": 80.0}, PATHOLOGICAL, seeds=(0, 1, 2))

    def notes(name: str, columns: tuple[str, ...], seeds: tuple[int, ...]) -> str:
        return build(Selection(name, columns=columns, seeds=seeds).sweep(), collect((), tmp_path))[-1].notes[-1]

    wish = {"columns": (PATHOLOGICAL,), "seeds": (0, 1, 2)}
    assert notes("accuracy", **wish).endswith(
        "; seed 0; SCAFFOLD seeds 0, 2; FedDyn seeds 0, 1; FedSMOO seeds 0, 1, 2."
    )
    assert notes("accuracy", (PATHOLOGICAL,), (0,)).endswith("; seed 0.")
    assert notes("accuracy", (PATHOLOGICAL,), (2,)).endswith("; seed 2.")
    best = {method: row["best on test"] for method, row in rows("accuracy", tmp_path, **wish).items()}
    assert best == {
        "FedAvg": "70.00", "FedAdam": "", "SCAFFOLD": "74.00 ± 1.41", "FedCM": "70.00",
        "FedDyn": "76.50 ± 0.71", "FedSAM": "70.00", "MoFedSAM": "", "FedSMOO": "81.00 ± 1.00",
    }  # fmt: skip
    counts = {method: row["n"] for method, row in rows("accuracy", tmp_path, **wish).items()}
    assert [counts[m] for m in ("FedAvg", "SCAFFOLD", "FedSMOO", "MoFedSAM")] == ["1", "2", "3", ""]
    # Lines to 80, 81, 82 reach 74 in rounds 740, 731, 722; to 76, 77 in 779, 769; of 73 and 75 one gets there, in 790.
    to = {method: (row["n"], row["to 74%"]) for method, row in rows("rounds", tmp_path, **wish).items()}
    assert to == {
        "FedAvg": ("1", "-"), "FedAdam": ("", ""), "SCAFFOLD": ("2", "790 (1 of 2)"), "FedCM": ("1", "-"),
        "FedDyn": ("2", "774 ± 7"), "FedSAM": ("1", "-"), "MoFedSAM": ("", ""), "FedSMOO": ("3", "731 ± 9"),
    }  # fmt: skip
    # Half a second a round, and twenty seconds more in the first: 20 + 740 / 2 and so on.
    seconds = {m: row["s to 74%"] for m, row in rows("wallclock", tmp_path, seeds=(0, 1, 2)).items()}
    assert (seconds["FedSMOO"], seconds["SCAFFOLD"], seconds["FedAvg"]) == ("385.5 ± 4.5", "415.0 (1 of 2)", "-")
    spent = {m: (row["n"], row["rounds"]) for m, row in rows("communication", tmp_path, seeds=(0, 1, 2)).items()}
    assert spent == to
    # Where only some of a row's columns have other seeds, they are named.
    write_results(tmp_path, {"FedAvg": 70.0, "FedSMOO": 80.0}, other)
    words = notes("accuracy", (PATHOLOGICAL, other), (0, 1, 2))
    assert words.endswith(f"; seed 0; SCAFFOLD seeds 0, 2; FedDyn seeds 0, 1; FedSMOO ({PATHOLOGICAL}) seeds 0, 1, 2.")


def test_rounds_to_a_target(results: Path) -> None:
    table = rows("rounds", results, columns=(PATHOLOGICAL,))
    # A line to 80 over 800 rounds is at 68% in round 680 and at 74% in round 740; one to 74 in round 800.
    assert table["FedSMOO"]["to 68%"] == "680"
    assert table["FedSMOO"]["to 74%"] == "740"
    assert table["FedAvg"]["to 74%"] == "800"
    assert table["FedDyn"]["to 74%"] == ""
    assert table["FedAdam"]["paper"] == "-"


def test_a_target_never_reached_is_a_dash(tmp_path: Path) -> None:
    write_results(tmp_path, {"FedAvg": 70.0}, PATHOLOGICAL)
    assert rows("rounds", tmp_path, columns=(PATHOLOGICAL,))["FedAvg"]["to 74%"] == "-"


def test_communication_counts_what_travels_and_what_the_paper_counts(results: Path) -> None:
    table = rows("communication", results)
    # Relative to FedAvg's 800 rounds of 2 vectors: 740 rounds of 4, of 3 (counted as 4), of 4.
    assert {m: (table[m]["× FedAvg"], table[m]["× FedAvg, paper's count"]) for m in ACCURACIES} == {
        "FedAvg": ("1.00", "1.00"), "SCAFFOLD": ("1.85", "1.85"), "FedCM": ("1.39", "1.85"), "FedSMOO": ("1.85", "1.85")
    }  # fmt: skip
    assert table["FedAvg"]["bytes"] == "64.0 MB"  # 800 rounds x 10 clients x 2 vectors x 4,000 bytes
    assert table["FedAvg"]["bytes, full model"] == "169.0 MB"
    assert table["FedSMOO"]["paper"] == "0.53"


def test_wall_clock(results: Path) -> None:
    table = rows("wallclock", results)
    assert table["FedSMOO"]["s/round"] == "0.500"  # medians: the first round's 20.5 and 8.1 s do not count
    assert table["FedSMOO"]["evaluation"] == "0.100"
    assert table["FedSMOO"]["s to 74%"] == "390.0"  # 740 rounds of training, and all of the first one's
    assert table["FedSMOO"]["ratio"] == "47.0×"  # 23.52 / 0.5
    assert table["FedSMOO"]["paper's to 74%"] == "4563"
    assert table["FedAdam"]["paper's to 74%"] == "-"


def test_times_of_runs_in_batches_say_so() -> None:
    sweep = Selection("wallclock", methods=("FedAvg", "FedSMOO")).sweep()
    found = {}
    for cell in sweep.cells:
        run = fake_result(cell.config, 80.0)
        found[cell.identity] = replace(run, facts={**run.facts, "packed": 4} if cell.method == "FedSMOO" else run.facts)
    (made,) = build(sweep, found)
    assert [row[made.header.index("batch")] for row in made.rows] == ["1", "4"]
    assert any("Rows of different batches do not compare" in note for note in made.notes)
    (alone,) = build(Selection("wallclock", methods=("FedSMOO",)).sweep(), found)
    assert not any("do not compare" in note for note in alone.notes)


def test_a_lead_is_paired_by_seed_and_claims_no_more_than_it_can() -> None:
    def note(seeds: tuple[int, ...], **accuracies: dict[int, float]) -> str:
        sweep = Selection("accuracy", columns=(PATHOLOGICAL,), methods=tuple(accuracies), seeds=seeds).sweep()
        there = [c for c in sweep.cells if c.config.seed in accuracies[c.method]]
        found = {c.identity: fake_result(c.config, accuracies[c.method][c.config.seed]) for c in there}
        return build(sweep, found)[0].notes[0]

    # The mean of the last ten is 1 - 4.5 / 800 of where a line ends: 2 points become 1.99.
    assert note((0,), FedAvg={0: 70.0}, FedSMOO={0: 72.0}) == (
        "Last ten, seed 0: FedSMOO ends 1.99 above FedAvg; one seed carries no claim."
    )
    assert note((0, 1), FedAvg={0: 70.0, 1: 70.0}, FedSMOO={0: 72.0, 1: 72.0}).endswith("two seeds carry no claim.")
    # 0.994375 times 1, 2, 3: mean 1.99, half-width 4.3027 x 0.994375 / sqrt(3) = 2.47.
    assert note((0, 1, 2), FedCM={0: 71.0, 1: 60.0, 2: 65.0}, FedSMOO={0: 72.0, 1: 62.0, 2: 68.0}) == (
        "Last ten, seeds 0, 1, 2: FedSMOO ends 1.99 above FedCM, which is level "
        "(95% interval -0.48 to 4.46, paired by seed)."
    )
    # Of three methods, one with a single seed: the order is that of the seed that all have.
    words = note((0, 1, 2), FedAvg={0: 71.0}, FedCM={0: 67.0, 1: 9.0, 2: 9.0}, FedSMOO={0: 72.0, 1: 6.0, 2: 6.0})
    assert words.startswith("Last ten, seed 0: FedSMOO ends 0.99 above FedAvg; one seed")


@pytest.mark.parametrize(("who", "cells"), [("FedAvg", ["40.00", ""]), ("FedSMOO", ["", "40.00"])])
def test_the_round_chosen_by_validation_has_a_column_where_there_is_one(who: str, cells: list[str]) -> None:
    sweep = Selection("accuracy", columns=(PATHOLOGICAL,), methods=("FedAvg", "FedSMOO")).sweep()
    found = {}
    for cell in sweep.cells:
        run = fake_result(cell.config, 80.0)
        known = {"validation_accuracy": [0.5 if k == 399 else 0.4 for k in range(800)]}
        found[cell.identity] = replace(run, curve=run.curve | (known if cell.method == who else {}))
    (made,) = build(sweep, found)
    at = made.header.index("by validation")
    assert [row[at] for row in made.rows] == cells  # half of the way up a line to 80
    assert {len(row) for row in made.rows} == {len(made.header)}


def test_ablation(results: Path) -> None:
    table = rows("ablation", results)
    assert table["none"]["last round"] == "74.00"
    assert table["dynamic_regularisation_sam_and_correction"]["− paper's"] == "-1.58"
    assert [table["dynamic_regularisation_and_sam"][k] for k in ("regulariser", "SAM", "correction")] == ["✓", "✓", ""]


def test_flatness_is_of_the_end_of_a_run() -> None:
    sweep = Selection("flatness").sweep()
    mild, strong = "10%-of-100 cifar10.dirichlet-0.6", "10%-of-100 cifar10.dirichlet-0.1"
    hessian = {("FedSAM", mild): (10.0, 200.2), ("FedSAM", strong): (11.0, 300.0), ("FedSMOO", strong): (7.54, 90.0)}
    found = {}
    for cell in sweep.cells:
        run, key = fake_result(cell.config, 80.0), (cell.method, cell.column)
        known = {"hessian": dict(zip(("top", "trace"), hessian[key], strict=True))} if key in hessian else {}
        found[cell.identity] = replace(run, facts={**run.facts, **known})
    (made,) = build(sweep, found)
    assert made.header[1::2] == [f"{m} dirichlet-{u}" for m in ("FedSAM", "FedSMOO") for u in (0.6, 0.1)]
    # Drift rises in a line to 2 over 800 rounds: the mean of the last ten is 2 (1 - 4.5 / 800), of the first ten 0.014.
    assert [row[1::2] for row in made.rows] == [
        ["1.989", "1.989", "1.989", "1.989"], ["", "", "", ""], ["10.0", "11.0", "", "7.5"],
        ["200.2", "300.0", "", "90.0"],
    ]  # fmt: skip
    assert [row[2::2] for row in made.rows] == [
        *[["0.866", "1.245", "0.821", "1.061"]] * 2, ["142.65", "177.18", "91.46", "107.44"],
        ["3104.1", "3842.3", "1783.3", "2689.4"],
    ]  # fmt: skip


def test_curves_say_what_an_evaluation_had() -> None:
    """A line to 80 over 800 rounds is at 10 in the hundredth; one of 400 rounds stays where it ended."""
    sweep = Selection("curves", columns=(PATHOLOGICAL,), methods=("FedAvg", "FedSMOO")).sweep()
    found = {
        c.identity: fake_result(c.config.replace(rounds=n), 80.0) for c, n in zip(sweep.cells, (400, 800), strict=True)
    }
    (plain,) = curves(Grid(sweep, found), "", lambda values, window: values, 1)
    assert plain.header == ["method", *(f"evaluation {t}" for t in range(100, 801, 100))]
    assert plain.rows == [
        ["FedAvg", "20.00", "40.00", "60.00", "80.00", "80.00", "80.00", "80.00", "80.00"],
        ["FedSMOO", "10.00", "20.00", "30.00", "40.00", "50.00", "60.00", "70.00", "80.00"],
    ]
    assert "seed 0." in plain.notes[-1]
    (smooth,) = build(sweep, found)  # by a window of 20, centred: inside, a line stays where it is
    assert smooth.rows[1][:8] == plain.rows[1][:8]


def test_curves_that_were_evaluated_now_and_then_are_smoothed_over_as_many_rounds() -> None:
    """A window of 20 rounds has two points of a curve with one in ten: too few to smooth a step away."""
    sweep = Selection("curves", columns=(PATHOLOGICAL,), methods=("FedAvg",)).sweep({"eval_every": 10})
    result = fake_result(sweep.cells[0].config, 80.0)
    tested = [(0.2 if k < 400 else 0.8) if k % 10 == 0 else None for k in range(1, 801)]
    lost = [None if v is None else 1.0 for v in tested]
    found = {
        sweep.cells[0].identity: replace(result, curve=result.curve | {"test_accuracy": tested, "test_loss": lost})
    }
    (made,) = build(sweep, found)
    assert made.header[1:] == [f"evaluation {t}" for t in range(10, 81, 10)]
    assert made.rows == [["FedAvg", *["20.00"] * 3, *["80.00"] * 5]]


def test_a_smaller_version_is_marked_and_has_its_own_runs(results: Path) -> None:
    sweep = Selection("accuracy", columns=(PATHOLOGICAL,), scale=0.1).sweep()
    assert {c.rounds for c in sweep.configs} == {80}
    made = build(sweep, collect((), results))
    assert "Not the paper's setting, so not comparable with its numbers: rounds = 80." in made[0].notes
    assert all(row[1] == "" for row in made[0].rows)


def test_results_come_back_as_they_were(results: Path) -> None:
    for path in results.glob("*.json"):
        assert to_json(from_json(path)) == path.read_text()
    config = experiment("accuracy", [PATHOLOGICAL], ["FedAvg"]).configs[0].replace(clip=None)
    (results / "x.json").write_text(to_json(fake_result(config, 50.0)))
    assert from_json(results / "x.json").config == config


def test_other_files_among_the_results_are_left_alone(results: Path) -> None:
    before = collect((), results)
    (results / "speed.json").write_text("[1, 2, 3]")
    (results / "more.json").write_text('{"format": "something else"}')
    assert collect((), results) == before


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_regenerates_byte_for_byte(name: str, form: str, results: Path) -> None:
    def text() -> str:
        return render(
            build(
                Selection(name, columns=() if name == "sensitivity" else ("10%-of-100",)).sweep(), collect((), results)
            ),
            form,
        )

    first = text()
    for k, path in enumerate(sorted(results.glob("*.json"))):  # other names, another order
        path.rename(path.with_name(f"{9 - k}.json"))
    assert text() == first
    assert "/tmp" not in first


def test_documents_are_rewritten_between_their_markers(results: Path, tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    marker = f"<!-- table: accuracy --columns '{PATHOLOGICAL}' --methods FedAvg,FedSMOO --compact -->"
    document.write_text(
        f"before\n{marker}\nold\n<!-- /table -->\nbetween\n<!-- table: ablation -->\n<!-- /table -->\nafter\n"
    )
    with pytest.raises(FedsmooError, match="out of date"):
        update([document], results, check=True)
    update([document], results, check=False)
    once = document.read_text()
    assert "| FedSMOO | 80.00 (-1.58) |" in once
    assert once.startswith(f"before\n{marker}\n**Test accuracy")
    assert once.endswith("<!-- /table -->\nafter\n")
    assert "old" not in once.splitlines()
    update([document], results, check=True)
    assert updated(once, collect((), results)) == once


@pytest.mark.parametrize("marker", ["accuracy --scale a", "accuracy --scale", "accuracy --columns 'cifar10"])
def test_a_wrong_marker_is_one_line(marker: str, results: Path) -> None:
    with pytest.raises(FedsmooError, match="a table's marker says"):
        updated(f"<!-- table: {marker} -->\n<!-- /table -->\n", collect((), results))


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"name": "accuracies"}, "did you mean 'accuracy'"),
        ({"name": "accuracy", "columns": ("cifar11",)}, "unknown column 'cifar11'"),
        ({"name": "accuracy", "methods": ("FedFoo",)}, "unknown method 'FedFoo'"),
        ({"name": "accuracy", "scale": 2.0}, "--scale is 2"),
    ],
)
def test_a_wrong_wish_is_one_line(wish: dict, words: str) -> None:
    with pytest.raises(FedsmooError, match=words):
        Selection(**wish).sweep()


def test_runs_with_other_settings_are_no_seeds_of_a_cell(results: Path) -> None:
    """A list would be an axis without a column: its runs would be averaged as seeds are."""
    for given in ({"lr": [0.1, 0.2]}, {"algorithm_options": {"r": [0.1, 0.2]}}):
        with pytest.raises(FedsmooError, match="several values are given"):
            table("accuracy", (PATHOLOGICAL,), ("FedSMOO",), results=results, run=False, **given)
    assert len(table("accuracy", (PATHOLOGICAL,), results=results, run=False, seed=[0, 1]).sweep.cells) == 16


def test_runs_that_another_metric_leads_are_in_no_table_of_accuracies(tmp_path: Path) -> None:
    write_results(tmp_path, {"FedAvg": 70.0}, PATHOLOGICAL, seeds=(0,))
    (file,) = tmp_path.glob("*.json")
    value = json.loads(file.read_text())
    value["curve"]["metrics.f1"] = value["curve"]["test_accuracy"]
    value["curve"]["test_accuracy"] = [None] * len(value["curve"]["metrics.f1"])
    file.write_text(json.dumps(value))
    words = "the paper's tables are of test accuracy, but these runs are compared by the test F1 score"
    with pytest.raises(FedsmooError, match=words):
        rows("accuracy", tmp_path, columns=(PATHOLOGICAL,), methods=("fedavg",), seeds=(0,))


def test_words_name_columns_by_their_parts() -> None:
    def count(*words: str) -> int:
        return len({c.column for c in experiment("accuracy", words).cells})

    assert [count("cifar10"), count("cifar100"), count("dirichlet-0.1"), count("5%-of-200"), count(PATHOLOGICAL)] == [
        8, 8, 4, 8, 1
    ]  # fmt: skip


def test_formats() -> None:
    table = Table("A & B", ["method", "x %"], [["a_b", "1 ± 2"], ["c|d", "−3"]], ["note"])
    assert render([table], "text") == "A & B\nmethod    x %\n------  -----\na_b     1 ± 2\nc|d        −3\nnote\n"
    assert "| c\\|d | −3 |" in render([table], "markdown")
    assert r"a\_b & 1 $\pm$ 2 \\" in render([table], "latex")
    assert list(csv.reader(io.StringIO(render([table], "csv"))))[1] == ["A & B", "a_b", "1 ± 2"]


def test_the_folder_of_experiments_holds_a_file_for_each() -> None:
    folder = Path(__file__).parents[2] / "experiments" / "paper"
    assert sorted(p.stem for p in folder.glob("*.toml")) == sorted([*EXPERIMENTS, "published", "searched"])
    for path in (folder.parent / "campaign").glob("*.toml"):
        assert tomllib.loads(path.read_text())["base"] in EXPERIMENTS


def test_a_run_without_an_evaluated_round_is_left_out_and_named(results: Path) -> None:
    path = next(results.glob("fedavg-*.json"))
    run = from_json(path)
    path.write_text(to_json(replace(run, curve={**run.curve, "test_accuracy": [None] * len(run.curve["round"])})))
    for kind in ("accuracy", "rounds"):
        made = build(Selection(kind, (PATHOLOGICAL,), ("FedAvg", "FedCM")).sweep(), collect((), results))
        assert f"{path.stem} has no evaluated round: it is left out." in made[-1].notes
    found = rows("accuracy", results, columns=(PATHOLOGICAL,), methods=("FedAvg", "FedCM"))
    assert (found["FedAvg"]["n"], found["FedAvg"]["last round"], found["FedCM"]["n"]) == ("", "", "1")


def test_scores_whose_sum_is_no_number_have_a_mean(results: Path) -> None:
    path = next(results.glob("fedavg-*.json"))
    run = from_json(path)
    path.write_text(to_json(replace(run, curve={**run.curve, "test_accuracy": [1e308] * len(run.curve["round"])})))
    found = rows("accuracy", results, columns=(PATHOLOGICAL,), methods=("FedAvg",))
    assert (found["FedAvg"]["n"], found["FedAvg"]["last ten"]) == ("1", "inf"), "a hundred times that, in per cent"


@pytest.mark.parametrize("name", ["seconds_train", "bytes_up", "test_accuracy"])
def test_a_result_with_what_is_no_number_is_refused(results: Path, name: str) -> None:
    path = next(results.glob("fedavg-*.json"))
    value = json.loads(path.read_text())
    value["curve"][name] = 10**400 if name == "test_accuracy" else None
    path.write_text(json.dumps(value))
    with pytest.raises(FedsmooError, match=r"its curve holds what is no number; export the run again$"):
        from_json(path)


def test_a_hessian_of_words_is_refused_and_facts_that_are_null_are_none(results: Path) -> None:
    path = next(results.glob("fedavg-*.json"))
    value = json.loads(path.read_text()) | {"versions": None}
    path.write_text(json.dumps(value))
    assert "versions" not in from_json(path).facts
    path.write_text(json.dumps(value | {"hessian": {"top": "large", "trace": None}}))
    with pytest.raises(FedsmooError, match="hessian is"):
        from_json(path)


def test_rounds_without_an_evaluation_are_none_of_its_times(results: Path) -> None:
    run = from_json(next(results.glob("fedavg-*.json")))
    rounds = len(run.curve["round"])
    tested = [(k + 1) % 10 == 0 for k in range(rounds)]
    seldom = {
        "test_accuracy": [a if t else None for a, t in zip(run.curve["test_accuracy"], tested, strict=True)],
        "seconds_eval": [2.0 if t else 1e-6 for t in tested],
    }
    assert evaluation_seconds(replace(run, curve={**run.curve, **seldom})) == [2.0] * sum(tested)


def test_a_table_names_all_who_made_its_runs(results: Path) -> None:
    """A run that was begun by edited files on another machine, and resumed, is not the last machine's alone."""
    path = next(results.glob("fedavg-*.json"))
    run = from_json(path)
    begun = {"device": "an old machine", "commit": "f" * 40, "dirty": True, "versions": {"torch": "1.0"}}
    path.write_text(to_json(replace(run, facts={**run.facts, "sessions": [begun, "damaged"]})))
    made = build(Selection("accuracy", (PATHOLOGICAL,), ("FedAvg", "FedCM")).sweep(), collect((), results))
    assert "Measured on a machine, an old machine with torch 1.0, 9.9" in made[-1].notes[-1]
    assert f"{'f' * 10}+dirty" in made[-1].notes[-1]
