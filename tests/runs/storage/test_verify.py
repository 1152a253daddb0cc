"""``fedsmoo verify``: every file that is damaged is named, and what is left to use is said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fedsmoo.cli import main
from fedsmoo.core import FedsmooError
from fedsmoo.runs.results.finished import open_finished
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.names import CHECKPOINT, CONFIG, METRICS, MODEL, STARTED, SUMMARY
from fedsmoo.runs.storage.verify import verify

from .test_checkpoint import SMALL, stopped


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_every_file_of_a_stopped_run_is_checked_and_resume_does_what_verify_says(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    clean = verify(folder)
    assert (clean.damaged, clean.checkpoints) == ([], [6, 4])
    assert clean.usable == f"'fedsmoo resume {folder}' goes on after round 6"
    for path in sorted((folder / CHECKPOINT).iterdir()):
        whole = path.read_bytes()
        for damage in (flip, lambda p: p.write_bytes(b""), Path.unlink):
            damage(path)
            found = verify(folder)
            left = [6] if path.name.startswith("000004") else [4]
            assert found.checkpoints == left, path.name
            missing = damage is Path.unlink and path.suffix == ".json"  # then there is no such checkpoint
            assert [path.name in line for line in found.damaged] == ([] if missing else [True])
            path.write_bytes(whole)
    flip(folder / CHECKPOINT / "000006-rows.safetensors")
    assert len(reopen(folder).simulation.history) == 4


@pytest.mark.parametrize("name", [CONFIG, STARTED])
def test_an_empty_file_is_damage_and_the_checkpoints_are_usable(tmp_path: Path, name: str) -> None:
    folder = stopped(tmp_path / "a")
    (folder / name).write_bytes(b"")
    found = verify(folder)
    assert [name in line for line in found.damaged] == [True]
    assert found.checkpoints == [6, 4]


def test_metrics_that_were_changed_are_damage_of_which_there_is_a_copy(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    (folder / METRICS).write_bytes((folder / METRICS).read_bytes()[:-200].rpartition(b"\n")[0] + b"\n")
    found = verify(folder)
    assert [line.partition(" was ")[0] for line in found.damaged] == [str(folder / METRICS)]
    assert found.checkpoints == [6, 4]


def test_a_damaged_model_is_named_and_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a"
    Run.begin(SMALL, folder).go()
    summary = json.loads((folder / SUMMARY).read_text())
    assert summary["model_sha256"] == hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()
    assert summary["metrics_sha256"] == hashlib.sha256((folder / METRICS).read_bytes()).hexdigest()
    main_code(["verify", str(folder)], 0)
    assert "finished, and its results are whole" in capsys.readouterr().out
    flip(folder / MODEL)
    main_code(["verify", str(folder)], 1)
    said = capsys.readouterr().out
    assert f"{folder / MODEL} is not as it was written" in said
    assert "1 damaged; finished, but its results are damaged; the checkpoint of round 9 is whole" in said
    with pytest.raises(FedsmooError, match="is not as it was written"):
        open_finished(folder, "cpu")
    del summary["model_sha256"]  # as in runs of before
    (folder / SUMMARY).write_text(json.dumps(summary))
    assert verify(folder).damaged == []
    (folder / METRICS).write_bytes(b"")
    assert len(verify(folder).damaged) == 2, "the summary's hash, and the checkpoint's"


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FedsmooError, match="is not a run folder"):
        verify(tmp_path)


def main_code(words: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code
