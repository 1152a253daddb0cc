"""Rivals on a GPU: rows that are measured later lie beside the earlier ones, and the table says of which commit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals import gpu
from benchmarks.rivals.gpu_table import WORK, on_gpu
from fedsmoo.runs.origin.provenance import code_facts

CODE = {"commit": "0123456789abcdef", "dirty": False}
TORCH = "2.11.0+cu130"


def measured(task: str, way: str, seconds: float, precision: str = "tf32", **more: Any) -> dict[str, Any]:
    row = {"task": task, "way": way, "precision": precision, "seconds_per_round": seconds}
    return row | {"test_accuracy": 0.5, "test_loss": 1.0, "versions": {"torch": TORCH}} | more


def report(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    settings = json.loads(json.dumps(gpu.TASKS))
    facts = {"code": CODE, "hardware": "cpu", "tiny": True, "versions": {"torch": TORCH}, "settings": settings}
    return facts | {"rows": list(rows)} | more


def table(found: dict[str, Any]) -> str:
    return on_gpu(found, {"hardware": "another"}, {})


def test_ways_are_told_apart_and_can_be_started() -> None:
    ways = gpu.ways()
    assert len({(w.task, w.name, w.precision) for w in ways}) == len(ways)
    assert {w.task for w in ways} == set(WORK) == set(gpu.TINY)
    assert all((gpu.WORKERS / w.script).is_file() for w in ways)


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    way = gpu.Way("paper", "X", "ours.py", package="json no_such_package")
    assert way.missing(tmp_path) == "no_such_package is not installed"
    assert gpu.Way("paper", "X", "ours.py", package="json torch").missing(tmp_path) is None


def main(found: list[dict[str, Any]], before: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    words = ["--device", "cpu", "--tiny", "--merge", str(before), "--out", str(before), *more]
    monkeypatch.setattr(sys, "argv", ["gpu", *words])
    monkeypatch.setattr(gpu, "measure", lambda chosen, args, folder: found)
    monkeypatch.setattr(gpu, "device_name", lambda device: "cpu")
    gpu.main()


def test_rows_that_are_measured_later_say_their_commit_and_leave_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [measured("paper", "fedsmoo", 0.1), measured("paper", "plain loop", 4.0), measured("pfl", "fedsmoo", 0.2)]
    first = report(*old, note="What was special.")
    (tmp_path / "rivals.json").write_text(json.dumps(first))
    new = [
        measured("paper", "plain loop", 5.0),
        measured("fedjax", "FedJAX", 0.5),
        {"task": "pfl", "way": "fedsmoo", "precision": "tf32", "not_run": "no memory"},
        {"task": "fedjax", "way": "DrJAX", "precision": "tf32", "not_run": "drjax is not installed"},
    ]
    main(new, tmp_path / "rivals.json", monkeypatch)
    found = json.loads((tmp_path / "rivals.json").read_text())
    mine = {"code": code_facts()}
    assert found == first | {"rows": [old[0], old[2], new[0] | mine, new[1] | mine, new[3] | mine]}
    main([measured("fedjax", "FedJAX", 0.4)], tmp_path / "rivals.json", monkeypatch)
    assert json.loads((tmp_path / "rivals.json").read_text())["rows"][:3] == found["rows"][:3]


def test_rows_of_another_machine_or_of_other_work_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = report()
    changed["settings"]["paper"]["batch_size"] = 7
    for before, said in (
        (report(hardware="NVIDIA H200"), "hardware is cpu here, NVIDIA H200 there"),
        (report(tiny=False), "tiny is True here, False there"),
        (changed, "paper has other settings there"),
    ):
        text = json.dumps(before)
        (tmp_path / "rivals.json").write_text(text)
        with pytest.raises(SystemExit):
            main([measured("paper", "fedsmoo", 0.1)], tmp_path / "rivals.json", monkeypatch)
        assert said in capsys.readouterr().err
        assert (tmp_path / "rivals.json").read_text() == text
    main([measured("fedjax", "FedJAX", 0.1)], tmp_path / "rivals.json", monkeypatch, "--only", "fedjax")


def test_the_table_has_the_faster_way_of_a_rival_and_the_commits() -> None:
    other = {"code": {"commit": "fedcba9876543210", "dirty": False}}
    jax = other | {"versions": {"torch": TORCH, "jax": "0.11.2", "drjax": "0.2.1"}}
    rows = [
        measured("paper", "fedsmoo", 0.1),
        measured("paper", "BlazeFL, as it ships, one thread", 3.0),
        measured("paper", "BlazeFL, as it ships, ten processes", 4.0),
        measured("paper", "DrJAX, clients by vmap", 2.0, **jax),
        measured("paper", "DrJAX, clients in turn", 0.5, **jax),
        measured("paper", "DrJAX, clients by vmap", 1.0, "bf16", **jax),
        {"task": "paper", "way": "DrJAX, clients in turn", "precision": "bf16", "not_run": "late", **other},
        measured("fedjax", "fedsmoo", 0.1, **other),
    ]
    text = table(report(*rows))
    assert "|  | DrJAX, clients in turn | tf32 | 0.500 | 5.0x |" in text
    assert "|  | DrJAX, clients by vmap | bf16 | 1.000 |" in text
    assert text.count("DrJAX,") == 2
    assert text.count("BlazeFL, as it ships") == 2
    assert (
        "commit 0123456789; commit fedcba9876 (DrJAX on the paper's round; all ways on FedJAX's EMNIST example with "
        "drawn images; drjax 0.2.1, jax 0.11.2). Images" in text
    )
    assert "commit fedcba9876" not in table(report(*rows[:3]))


def test_a_rival_that_was_not_run_stands_once_in_the_table() -> None:
    names = ("DrJAX, clients by vmap", "DrJAX, clients in turn")
    rows = [{"task": "paper", "way": n, "precision": "tf32", "not_run": "drjax is not installed"} for n in names]
    text = table(report(*rows))
    assert text.count("not run: drjax is not installed") == 1
