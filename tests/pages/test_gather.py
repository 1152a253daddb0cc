"""What the page is told: run folders read without trust."""

from __future__ import annotations

import json
import os
import random
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import matrix, number
from fedsmoo.pages import page
from fedsmoo.pages.gather import gather, shortest_names
from fedsmoo.pages.metrics import COLUMNS, as_written, by_row, curves
from fedsmoo.runs.record import Record
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.storage.walk import find_runs

from .folders import accuracy, measurements, run_folder


def test_rounds_are_kept_and_constants_shortened(tmp_path: Path) -> None:
    run = gather([run_folder(tmp_path, "a", "fedsmoo", 1, rounds=7)])["runs"][0]
    assert run["rounds"] == 7
    assert run["acc"] == pytest.approx([accuracy("fedsmoo", 1, t, 7) for t in range(1, 8)], rel=1e-4)
    assert (run["up"], run["down"], run["sec"]) == (1_000_000, 2_000_000, 0.05)
    assert run["probes"] == {"sharpness": [[5, 0.1]]}
    assert (run["method"], run["group"]) == ("FedSMOO", "FedSMOO")
    assert run["task"] == "digits, dirichlet-0.1, mlp, 4 of 20 clients"


def test_partition_of_a_built_in_data_set_is_made_again(tmp_path: Path) -> None:
    data = gather([run_folder(tmp_path, "a", "fedavg"), run_folder(tmp_path, "b", "fedsam")])
    assert [r["partition"] for r in data["runs"]] == [0, 0]
    counts = data["partitions"][0]["counts"]
    assert (len(counts), len(counts[0])) == (20, 10)
    assert sum(map(sum, counts)) == 20 * (1438 // 20)


def test_a_config_that_names_code_or_files_is_only_shown(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass A: pass\n")
    runs = [
        run_folder(tmp_path, "a", f"{trap}:A", model=f"{trap}:A"),
        run_folder(tmp_path, "b", "fedavg", dataset=f"text:{trap}"),
        run_folder(tmp_path, "c", "fedavg", data=str(tmp_path)),
    ]
    data = gather(runs)
    assert [r["partition"] for r in data["runs"]][1:] == [None, None]
    assert not (tmp_path / "sprung").exists()
    assert data["runs"][0]["method"] == "trap.py:A"


def test_broken_and_hostile_metrics_are_left_out(tmp_path: Path) -> None:
    good = {"round": 1, "test_accuracy": 0.5}
    lines = [
        json.dumps(good),
        "[" * 100_000,
        '{"round": 2, "test_accuracy": NaN, "drift": 1e999, "probes": {"x": "<img>"}}',
        '{"round": "3"}',
        "null",
        json.dumps({"round": 1, "test_accuracy": 0.9}),
        '{"round": 4, "test_acc',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    columns = json.loads(curves(read_run(tmp_path, strict=True)))
    assert columns["rounds"] == 2
    assert columns["acc"] == [0.5, None]
    assert columns["drift"] == [None, None]
    assert columns["probes"] == {"x": [[2, None]]}


def shown_of(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What a page shows of lines of metrics; compared with each number checked by itself."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(curves(read_run(folder, strict=True)))
    for short, name, digits in COLUMNS:
        true = [number(row[name], digits) for row in rows]
        all_one = bool(true) and true[0] is not None and len({*map(str, true)}) == 1
        assert found[short] == (true[0] if all_one else true)
    return found


def test_numbers_of_any_kind_are_shown_as_one_by_one(tmp_path: Path) -> None:
    chance = random.Random(3)
    pool = (0, 1.0, -0.5, 1e-9, 123456.789, 2**60, 10**400, float("nan"), float("inf"), None, True, "<b>", [1])
    for size, drawn in ((40, pool), (40, pool[:5]), (40, (0.25,)), (3, (None,)), (0, pool)):
        rows = [{"round": t + 1} | {n: chance.choice(drawn) for _, n, _ in COLUMNS} for t in range(size)]
        assert as_written("".join(json.dumps(row) + "\n" for row in rows).encode()) is None
        assert shown_of(rows, tmp_path)["rounds"] == size


def test_lines_as_a_run_writes_them_are_read_without_parsing_them(tmp_path: Path) -> None:
    chance = random.Random(4)
    some = (0.1234567890123, 1e-9, 3.0, 1e22, None)
    for held_out in (False, True):
        records = [
            Record(t, *(chance.choice(some) for _ in range(4)), 0.1, [t, 2], 10**13 + 7, 5, 0.5, 0.1, {"a b": 1.5 * t})
            for t in range(1, 21)
        ]
        records = [replace(r, validation_accuracy=r.round / 7) for r in records] if held_out else records
        rows = [r.values() for r in records]
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        assert as_written(content) == by_row([{**row, "x": 0} for row in rows])
        found = shown_of(rows, tmp_path)
        assert found["probes"] == {"a b": [[t, number(1.5 * t)] for t in range(1, 21)]}
        assert found.get("val") == ([number(t / 7, 8) for t in range(1, 21)] if held_out else None)
        for other in (content[:-1], content[:-9], content + b"{}\n", content.replace(b": 0.5,", b": 0..5,")):
            assert as_written(other) is None
        assert as_written(content.replace(b'"round": 3,', b'"round": 30,')) is None
        assert as_written(content + content) is None


def test_a_damaged_line_among_thousands_costs_itself_alone(tmp_path: Path) -> None:
    lines = [json.dumps({"round": t, "test_accuracy": 0.5}) for t in range(1, 2501)]
    lines[1499] = lines[1499][:-9]  # torn, and yet the next line might close it
    lines[1700] = "\xff\xfe"
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    rounds = [row["round"] for row in read_run(tmp_path, strict=True).rows()]
    assert rounds == [t for t in range(1, 2501) if t not in (1500, 1701)]


def test_many_runs_are_held_as_text_of_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of numbers, and the page as one string and again as bytes, took nine times the page's size."""
    monkeypatch.setattr(page, "plotly_source", lambda: b"")
    runs = [run_folder(tmp_path, f"r{k}", "fedavg", k, rounds=800, dataset="cifar10") for k in range(30)]
    page.write_page(runs[:1], tmp_path / "page.html")  # what is imported or kept on the way does not count
    tracemalloc.start()
    page.write_page(runs, tmp_path / "page.html")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * (tmp_path / "page.html").stat().st_size + 4e6


def test_files_that_are_not_files_do_not_hang(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "a", "fedavg")
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    assert gather([folder])["runs"][0]["rounds"] == 0


def test_measurements_are_checked_field_by_field(tmp_path: Path) -> None:
    bad = measurements(1.0)
    bad["landscape"]["loss"] = [[1.0, 2.0], [3.0]]
    bad["hessian"]["trace"] = "<b>"
    bad["sharpness"] = {"sharpness": 0.5, "note": "text", "nested": {"x": 1}}
    found = gather([run_folder(tmp_path, "a", "fedavg", analysis=bad)])["runs"][0]["analysis"]
    assert "landscape" not in found
    assert found["hessian"]["trace"] is None
    assert found["hessian"]["eigenvalues"] == [100, 50]
    assert found["sharpness"] == {"sharpness": 0.5}


def test_groups_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path, "a", "fedavg", 0, lr=0.1),
        run_folder(tmp_path, "b", "fedavg", 1, lr=0.1),
        run_folder(tmp_path, "c", "fedavg", 0, lr=0.5),
        run_folder(tmp_path, "d", "fedsam", 0, lr=0.5),
        run_folder(tmp_path, "e", "fedavg", 0, lr=0.1, u=0.6),
        run_folder(tmp_path, "f", "fedcm", 0),  # as it comes: its plain name, as in tasks where it is alone
        run_folder(tmp_path, "g", "fedcm", 0, clip=1.0),
    ]
    data = gather(runs)["runs"]
    two = ["FedAvg (lr=0.1)", "FedAvg (lr=0.1)", "FedAvg (lr=0.5)"]
    assert [r["group"] for r in data] == [*two, "FedSAM", "FedAvg", "FedCM", "FedCM (clip=1.0)"]
    assert data[4]["task"] != data[0]["task"]


def test_switches_away_from_their_defaults_are_named_even_alone(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "a", "fedsmoo")
    with (folder / "config.toml").open("a") as config:
        config.write('[algorithm_options]\nsam = false\ncorrect = true\nperturbation = "released"\nr = 0.5\n')
    assert gather([folder])["runs"][0]["group"] == "FedSMOO (perturbation=released, sam=False)"
    typed = run_folder(tmp_path, "b", "fedsmoo", 1)  # by --set
    with (typed / "config.toml").open("a") as config:
        config.write('[algorithm_options]\nsam = "no"\ncorrect = "on"\n')
    assert gather([typed])["runs"][0]["group"] == "FedSMOO (sam=False)"


def test_a_seed_counts_once(tmp_path: Path) -> None:
    one, two = (run_folder(tmp_path, f"s{seed}", "fedavg", seed) for seed in (0, 1))
    shutil.copytree(one, tmp_path / "copy")
    open_still = run_folder(tmp_path, "begun", "fedavg", finished=False)
    data = gather([open_still, one, two, tmp_path / "copy"])["runs"]
    assert [r["group"] for r in data] == ["FedAvg (again 2)", "FedAvg", "FedAvg", "FedAvg (again)"]
    assert find_runs([one, tmp_path / "copy" / ".." / "s0"]) == [one]


def test_an_edited_method_is_another(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path, f"s{seed}", "mine.py:Mine", seed) for seed in (0, 1, 2)]
    for run, content in zip(runs, ("aaaaaaaa1", "bbbbbbbb1", "aaaaaaaa1"), strict=True):
        (run / "started.json").write_text(json.dumps({"contents": {"algorithm_content": content}}))
    one, two = "mine.py:Mine (algorithm_content=aaaaaaaa)", "mine.py:Mine (algorithm_content=bbbbbbbb)"
    assert [r["group"] for r in gather(runs)["runs"]] == [one, two, one]


def test_accuracies_keep_the_digits_that_their_spread_needs(tmp_path: Path) -> None:
    true = [0.8788254, 0.9073243]  # their deviation is 2.0152 points; of five digits each it would be 2.0145
    for seed, value in enumerate(true):
        folder = run_folder(tmp_path, f"s{seed}", "fedavg", seed, rounds=1)
        (folder / "metrics.jsonl").write_text(json.dumps({"round": 1, "test_accuracy": value}))
    assert [r["acc"] for r in gather(find_runs([tmp_path]))["runs"]] == true


def test_names_take_as_many_parents_as_they_need() -> None:
    assert shortest_names([Path("/x/a/run"), Path("/x/b/run")]) == ["a/run", "b/run"]
    assert shortest_names([Path("/x/a/run"), Path("/x/b/walk")]) == ["run", "walk"]


def test_folders_are_searched_downwards_but_links_are_not_followed(tmp_path: Path) -> None:
    inside = run_folder(tmp_path / "all" / "sweep", "a", "fedavg")
    (tmp_path / "all" / "loop").symlink_to(tmp_path / "all")
    assert find_runs([tmp_path / "all"]) == [inside]
    with pytest.raises(FedsmooError, match="not a folder"):
        find_runs([tmp_path / "nowhere"])


def test_without_plotly_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(FedsmooError, match=r"pip install 'fedsmoo\[report\]'"):
        page.plotly_source()


def test_small_readers(tmp_path: Path) -> None:
    assert number(10**400) is None
    assert number(123456.789) == 123457
    assert matrix([[1, "x"]]) == [[1, None]]


def test_what_callbacks_changed_is_no_seed(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path, f"s{seed}", "fedavg", seed, finished=seed < 3) for seed in range(4)]
    summary = json.loads((runs[1] / "summary.json").read_text())
    (runs[1] / "summary.json").write_text(json.dumps({**summary, "changes": [[2, {"lr": 0.01}]]}))
    rounds = (runs[3] / "metrics.jsonl").read_text().splitlines()  # not finished: only its rounds say it
    rounds[1] = json.dumps({**json.loads(rounds[1]), "changes": {"lr": 0.01}})
    (runs[3] / "metrics.jsonl").write_text("\n".join(rounds) + "\n")
    changed = "FedAvg (changes=lr=0.01 after round 2)"
    assert [r["group"] for r in gather(runs)["runs"]] == ["FedAvg", changed, "FedAvg", changed]


def test_one_setting_in_two_ways_of_writing_is_one_line(tmp_path: Path) -> None:
    old = run_folder(tmp_path, "old", "fedavg", 0, partition="dirichlet-0.6", u=0.1)  # before there was a holdout
    new = run_folder(tmp_path, "new", "fedavg", 1, partition="dirichlet", u=0.6, holdout=0.0)
    assert {(r["task"].split(", ")[1], r["group"]) for r in gather([old, new])["runs"]} == {("dirichlet-0.6", "FedAvg")}


def test_runs_that_were_evaluated_otherwise_are_no_seeds_of_one_line(tmp_path: Path) -> None:
    """The last ten evaluations of one are its last ten rounds, and of the other its last fifty."""
    folders = [run_folder(tmp_path, f"{k}", "fedavg", k, eval_every=1 if k < 2 else 5) for k in range(3)]
    groups = [run["group"] for run in gather(folders)["runs"]]
    assert groups[0] == groups[1] != groups[2]
    assert "eval_every=5" in groups[2]


def test_a_commit_with_edited_files_is_marked(tmp_path: Path) -> None:
    commit = {"commit": "0" * 40, "dirty": False}
    resumed = {**commit, "sessions": [{**commit, "dirty": True, "versions": {}}, {**commit, "versions": {}}]}
    for name, facts in (("a", {**commit, "dirty": True}), ("b", commit), ("c", resumed)):
        folder = run_folder(tmp_path, name, "fedavg")
        (folder / "summary.json").write_text(json.dumps(facts))
    found = gather([tmp_path / name for name in "abc"])["runs"]
    assert [run["summary"].get("dirty") for run in found] == [True, None, True]
