"""Run folders as they are found: whole, damaged, hostile; and where they are looked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.pages.gather import gather
from fedsmoo.runs.storage import files
from fedsmoo.runs.storage.reader import read_config, read_run, state
from fedsmoo.runs.storage.walk import find_runs, run_folders, stamped_folders
from fedsmoo.sweeps import index
from fedsmoo.sweeps.results import finished_runs, from_folder

ROUND = {"test_loss": 1.5, "train_loss": 2.0, "drift": 0.25, "lr": 0.1, "cohort": [0, 3], "bytes_up": 40}
ROUND |= {"bytes_down": 80, "seconds_train": 0.5, "seconds_eval": 0.25}
CONFIG = 'algorithm = "fedavg"\nrounds = 2\nseed = 7\nclients = 4\ncohort = 2\n'
HOLDS = ("config.toml", "metrics.jsonl", "started.json", "summary.json", "failed.json", "label.txt")
DEEP = "[" * 100_000
DIGITS = "9" * 5000  # more than Python turns into a number


def made(folder: Path, **texts: str | None) -> Path:
    """A finished run, with other text in some of its files; none: no such file."""
    rounds = [json.dumps({"round": t, "test_accuracy": t / 4, **ROUND}) + "\n" for t in (1, 2)]
    whole = {
        "config": CONFIG,
        "metrics": "".join(rounds),
        "started": '{"engine": "serial", "started": "then", "device": "old"}',
        "summary": '{"rounds": 2, "test_accuracy": 0.5, "device": "new", "parameters": 10}',
        "label": " mine \n",
        **texts,
    }
    folder.mkdir(parents=True)
    for name in HOLDS:
        if (content := whole.get(name.partition(".")[0])) is not None:
            (folder / name).write_text(content)
    return folder


def test_a_run_is_read_once_and_for_all(tmp_path: Path) -> None:
    run = read_run(made(tmp_path / "a"))
    assert (run.path, run.label, run.state, run.done, run.skipped) == (tmp_path / "a", "mine", "finished", 2, [])
    assert (run.config.algorithm, run.config.seed, run.config.lr) == ("fedavg", 7, 0.1)
    assert [(r.round, r.test_accuracy, r.cohort) for r in run.history] == [(1, 0.25, [0, 3]), (2, 0.5, [0, 3])]
    assert run.facts == {"engine": "serial", "started": "then", "device": "new"} | {
        "rounds": 2,
        "test_accuracy": 0.5,
        "parameters": 10,
    }
    assert [row["round"] for row in run.rows()] == [1, 2]
    assert run.config is run.config
    with pytest.raises(AttributeError):
        run.label = "another"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("absent", "expected"),
    [
        ((), "finished"),
        (("summary",), "failed"),
        (("summary", "failed"), "unfinished"),
        (("summary", "failed", "started", "metrics", "label"), "unfinished"),
    ],
)
def test_one_rule_for_the_state(tmp_path: Path, absent: tuple[str, ...], expected: str) -> None:
    folder = made(tmp_path / "a", **{"failed": '{"error": "no"}', **dict.fromkeys(absent)})
    assert [state(folder), read_run(folder).state, read_run(folder, strict=True).state] == 3 * [expected]
    assert index.describe(folder)["state"] == gather([folder])["runs"][0]["state"] == expected


def test_a_folder_without_a_run_is_new(tmp_path: Path) -> None:
    assert state(tmp_path / "nowhere") == state(tmp_path) == "new"
    (tmp_path / "summary.json").mkdir()
    assert state(tmp_path) == "new"


def test_a_torn_last_line_is_left_out_and_no_other(tmp_path: Path) -> None:
    line = json.dumps({"round": 1, "test_accuracy": 0.25, **ROUND})
    torn = made(tmp_path / "torn", metrics=f"{line}\n{line[:-9]}", summary=None)
    assert (len(read_run(torn).history), read_run(torn).done) == (1, 1)
    broken = made(tmp_path / "broken", metrics=f"{line[:-9]}\n{line}\n")
    with pytest.raises(FedsmooError, match=r"metrics.jsonl, line 1: not a round's record"):
        _ = read_run(broken).history


@pytest.mark.parametrize(("rounds", "wrong"), [((1, 2, 2, 3), 3), ((1, 3), 2), ((0, 1), 1), ((2, 3), 1)])
def test_rounds_that_are_missing_or_there_twice_are_no_history(
    tmp_path: Path, rounds: tuple[int, ...], wrong: int
) -> None:
    """Their bytes would be missing, or counted twice, in everything that a table says of the run."""
    lines = [json.dumps({"round": n, "test_accuracy": 0.25, **ROUND}) for n in rounds]
    folder = made(tmp_path / "a", metrics="\n".join(lines) + "\n")
    with pytest.raises(FedsmooError, match=f"line {wrong}: not a round's record"):
        _ = read_run(folder).history


def test_a_count_that_nothing_counts_to_is_damage(tmp_path: Path) -> None:
    line = json.dumps({"round": 1, "test_accuracy": 0.25, **ROUND})
    for name in ("parameters_full", "evaluations", "without_number", "bytes_up"):
        folder = made(tmp_path / name, metrics=f"{line}\n", summary=json.dumps({name: 10**400}))
        with pytest.raises(FedsmooError, match=f"is damaged: {name} is 1000000"):
            read_run(folder)


OF_ANOTHER_TYPE: dict[str, Any] = {
    "round": 1.5,
    "test_accuracy": True,
    "lr": "0.1",
    "cohort": -357,
    "probes": [1],
    "changes": 0,
}
OF_ANOTHER_TYPE |= {"bytes_up": None, "seconds_train": "", "metrics": None, "lower": "mse", "test_loss": 10**400}


@pytest.mark.parametrize("name", OF_ANOTHER_TYPE)
def test_a_round_with_a_field_of_another_type_is_one_line(tmp_path: Path, name: str) -> None:
    sound = {"round": 1, "test_accuracy": 0.25, **ROUND}
    changed = json.dumps({**sound, name: OF_ANOTHER_TYPE[name]})
    folder = made(tmp_path / "a", metrics=f"{json.dumps(sound)}\n{changed}\n")
    with pytest.raises(FedsmooError, match=r"metrics.jsonl, line 2: not a round's record$"):
        _ = read_run(folder).history


def test_members_of_a_cohort_are_numbers_and_so_are_measurements(tmp_path: Path) -> None:
    for k, wrong in enumerate(({"cohort": ["a"]}, {"cohort": [True]}, {"probes": {"sharpness": "b"}})):
        row = json.dumps({"round": 1, "test_accuracy": 0.25, **ROUND, **wrong})
        with pytest.raises(FedsmooError, match="line 1: not a round's record"):
            _ = read_run(made(tmp_path / str(k), metrics=row + "\n")).history


def test_numbers_that_are_not_finite_are_read_as_they_are(tmp_path: Path) -> None:
    row = json.dumps({"round": 1, "test_accuracy": float("inf"), **ROUND, "probes": {"sharpness": None}})
    folder = made(tmp_path / "a", metrics=row + "\n")
    assert read_run(folder).history[0].test_accuracy == float("inf")
    assert gather([folder])["runs"][0]["acc"] == [None]


def test_the_largest_numbers_are_no_infinity_on_a_page(tmp_path: Path) -> None:
    """Of 1.797693e308 five digits are 1.7977e308, which is no number any more."""
    rows = [
        {"round": t, "test_accuracy": 0.5, **ROUND, "train_loss": v} for t, v in ((1, 1.7976931e308), (2, 1.25e308))
    ]
    folder = made(tmp_path / "a", metrics="".join(json.dumps(row) + "\n" for row in rows))
    assert gather([folder])["runs"][0]["train"] == [None, 1.25e308]


BROKEN: dict[str, dict[str, str]] = {  # what is damaged, and what a person is told of it
    "no table": {"config": "rounds = [", "says": "not valid TOML"},
    "an endless number": {"config": f"rounds = {DIGITS}", "says": "not valid TOML"},
    "a deep config": {"config": f"rounds = {DEEP}", "says": "not valid TOML"},
    "an unknown setting": {"config": CONFIG + "lrr = 1\n", "says": "lrr"},
    "a setting of another type": {"config": 'rounds = "many"', "says": "rounds is 'many'"},
    "no options": {"config": "algorithm_options = 3\n[algorithm]\nname = 'fedavg'\n", "says": "algorithm_options"},
    "options that are a date": {"config": "algorithm_options = 2020-01-01\n", "says": "algorithm_options"},
    "notes that are a list": {"started": "[1]", "says": "started.json cannot be read: it holds no JSON object"},
    "deep notes": {"started": DEEP, "says": "started.json cannot be read: it is nested too deeply"},
    "a cut summary": {"summary": '{"rounds": 2', "says": "summary.json cannot be read"},
    "an endless count": {"summary": f'{{"rounds": {DIGITS}}}', "says": "summary.json cannot be read"},
    "text for a number": {"summary": '{"rounds": 2, "test_loss": "<b>"}', "says": "test_loss is '<b>'"},
    "a table for a number": {"summary": '{"rounds": {}}', "says": "rounds is {}"},
    "truth for a number": {"summary": '{"rounds": true}', "says": "rounds is True"},
    "contents of another kind": {"started": '{"contents": {"split_content": 5}}', "says": "contents is"},
    "a failure of another kind": {"failed": '{"error": ["x"]}', "says": "error is"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_damaged_is_one_line_to_its_owner_and_left_out_for_others(tmp_path: Path, name: str) -> None:
    texts = dict(BROKEN[name])
    says = texts.pop("says")
    folder = made(tmp_path / "all" / "a", **texts)
    made(tmp_path / "all" / "b")
    with pytest.raises(FedsmooError) as told:
        _ = read_run(folder).config
    assert says in str(told.value)
    assert str(folder) in str(told.value) or "setting" in name or "options" in name
    assert "\n" not in str(told.value).strip()
    assert [(r["path"], r["state"]) for r in index.query(tmp_path / "all")] == [("a", "unreadable"), ("b", "finished")]
    assert says in index.query(tmp_path / "all", "path = 'a'")[0]["error"]
    run = read_run(folder, strict=True)
    assert len(run.skipped) == (0 if "setting" in name or "options" in name else 1)
    assert all(says in line and len(line) < 2001 for line in run.skipped)
    shown = gather([folder])["runs"][0]
    assert (shown["acc"], shown["skipped"]) == ([0.25, 0.5], run.skipped), (
        "what is whole is shown, and what is not said"
    )


@pytest.mark.parametrize("field", ["test_accuracy", "bytes_up", "round", "seconds_train", "validation_accuracy"])
@pytest.mark.parametrize("value", ["x", [1.0], True])
def test_a_round_of_other_types_is_refused_by_line(tmp_path: Path, field: str, value: Any) -> None:
    row = {"round": 1, "test_accuracy": 0.25, **ROUND}
    folder = made(tmp_path / "a", metrics=json.dumps(row) + "\n" + json.dumps({**row, field: value}) + "\n")
    with pytest.raises(FedsmooError, match="line 2"):
        from_folder(folder)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_text('{"command": "the secret word"}')
    path.symlink_to(secret)


def folder_instead(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("name", HOLDS)
@pytest.mark.parametrize("trap", [pipe, device, link, folder_instead])
def test_a_strangers_file_that_is_no_plain_file_is_left_out(tmp_path: Path, name: str, trap: Any) -> None:
    folder = made(tmp_path / "a", failed='{"error": "no"}')
    (folder / name).unlink()
    trap(folder / name)
    run = read_run(folder, strict=True)
    rows = list(run.rows())
    assert len(rows) == (0 if name == "metrics.jsonl" else 2)
    reasons = {pipe: "it is no plain file", device: "it is a link", link: "it is a link"}
    if trap is folder_instead:  # as if it were not there
        assert run.skipped == ([f"{folder} is not a run folder: it has no config.toml"] if "config" in name else [])
    else:
        assert f"{folder / name} cannot be read: {reasons[trap]}" == run.skipped[0]
    assert run.state == ("failed" if name == "summary.json" else "finished")
    assert "secret" not in json.dumps(gather([folder])["runs"])


@pytest.mark.parametrize("name", HOLDS)
def test_a_pipe_does_not_hang_whoever_reads_a_folder_of_ones_own(tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "a", failed='{"error": "no"}')
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(FedsmooError, match="no plain file"):
        _ = read_run(folder).history


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json", "started.json", "label.txt"])
def test_no_link_out_of_a_folder_is_followed(tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "a")
    shutil.move(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(FedsmooError, match=rf"{name} cannot be read: it is a link"):
        _ = read_run(folder).history
    assert read_run(folder, strict=True).skipped or name == "metrics.jsonl"  # which is read when it is asked for


def test_a_strangers_file_may_be_so_large_and_no_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "a")
    size = (folder / "metrics.jsonl").stat().st_size
    for limit, rounds in ((size, 2), (size - 1, 0)):
        monkeypatch.setattr("fedsmoo.runs.storage.reader.MAX_BYTES", limit)
        run = read_run(folder, strict=True)
        assert len(list(run.rows())) == rounds
    assert run.skipped == [f"{folder / 'metrics.jsonl'} cannot be read: it has {size} bytes, more than {size - 1}"]
    assert len(read_run(folder).history) == 2, "one's own may be as large as they are"
    with (folder / "summary.json").open("ab") as f:
        f.truncate(files.MAX_BYTES + 1)
    monkeypatch.undo()
    assert "more than 67108864" in read_run(folder, strict=True).skipped[0]


def test_measurements_behind_a_link_are_not_shown(tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "hessian.json").write_text('{"eigenvalues": [3.0], "trace": 4.0}')
    (folder / "analysis").symlink_to(elsewhere)
    run = read_run(folder, strict=True)
    assert run.files.table("analysis/hessian.json") is None
    assert run.skipped == [f"{folder / 'analysis/hessian.json'} cannot be read: it lies behind a link"]
    assert gather([folder])["runs"][0]["analysis"] == {}
    with pytest.raises(FedsmooError, match="lies behind a link"):
        from_folder(folder)


def test_nothing_that_a_config_names_is_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass A: pass\n")
    folder = made(tmp_path / "a", config=f'algorithm = "{trap}:A"\nmodel = "{trap}:A"\n')
    for strict in (True, False):
        run = read_run(folder, strict=strict)
        assert run.config.model == f"{trap}:A"
        assert len(run.history) == 2
    assert not (tmp_path / "sprung").exists()


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    (folder / "started.json").write_bytes(b'{"command": "\xff"}')
    (folder / "label.txt").write_bytes(b"caf\xe9")
    assert read_run(folder, strict=True).facts["command"] == "\ufffd"
    assert read_run(folder, strict=True).label == "caf\ufffd"
    with pytest.raises(FedsmooError, match=r"started.json cannot be read: .*decode"):
        read_run(folder)
    (folder / "config.toml").write_bytes(b'dataset = "\xff"')
    with pytest.raises(FedsmooError, match="not valid TOML"):
        read_config(folder)


@pytest.mark.parametrize("read", [read_config, lambda folder: read_run(folder).config])
def test_a_setting_of_another_type_is_said_with_its_file(tmp_path: Path, read: Callable[[Path], object]) -> None:
    folder = made(tmp_path / "a", config='rounds = "many"\n')
    with pytest.raises(FedsmooError, match=rf"^{folder}/config.toml: rounds is 'many', but must be a whole number"):
        read(folder)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Runs at several depths, hidden, inside a run, and behind links."""
    root = tmp_path / "root"
    for place in ("b", "a/x", "1/2/3/four", "1/2/3/4/five", ".hidden/y", "b/inside"):
        made(root / place)
    made(tmp_path / "outside" / "z", summary=None)
    (root / "0 link").symlink_to(root / "b")  # to a run that is there
    (root / "1" / "up").symlink_to(root)
    (root / "far").symlink_to(tmp_path / "outside")
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    (root / "empty").mkdir()
    return root


def test_one_walker(tree: Path) -> None:
    """Which follows no link."""
    real = ["1/2/3/four", "a/x", "b"]
    for walk in (run_folders, find_runs, finished_runs):
        assert [str(p.relative_to(tree)) for p in walk([tree])] == real
    assert [path for path, _ in stamped_folders(tree)] == real
    assert [row["path"] for row in index.query(tree)] == real


@pytest.mark.parametrize("place", [".", "1", "a"])
def test_a_config_of_somebody_else_s_hides_no_runs(tree: Path, place: str) -> None:
    """A project's own ``config.toml``, at the top or in between; with a file of a run beside it, it is a run."""
    (tree / place / "config.toml").write_text('[tool]\nname = "mine"\n')
    (tree / place / "started").mkdir()
    assert [path for path, _ in stamped_folders(tree)] == ["1/2/3/four", "a/x", "b"]
    (tree / place / "metrics.jsonl").touch()
    assert place in [path for path, _ in stamped_folders(tree)]


def test_given_folders_count_once_and_may_be_links_runs_hidden_or_deep(tree: Path) -> None:
    given = [tree / "b", tree / "0 link", tree / ".hidden", tree / "1" / "2" / "3" / "4", tree / "far", tree / "b"]
    expected = ["b", ".hidden/y", "1/2/3/4/five", "far/z"]
    assert [str(p.relative_to(tree)) for p in run_folders(given)] == expected
    assert [path for path, _ in stamped_folders(tree / "b")] == ["."]
    assert list(run_folders([tree / "nowhere", tree / "b" / "config.toml"])) == []


def test_a_stamp_changes_with_every_file(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", failed="{}")
    seen = {dict(stamped_folders(tmp_path))["a"]}
    for k, name in enumerate(HOLDS):
        (folder / name).write_text((folder / name).read_text() + " " * k + "\n")
        seen.add(dict(stamped_folders(tmp_path))["a"])
    assert len(seen) == 7
