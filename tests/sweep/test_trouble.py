"""Runs of a sweep that cannot begin, cannot go on, or do not fit in one batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsmoo.experiment.config import Config
from fedsmoo.experiment.runfolder import CHECKPOINT, FAILED, SUMMARY
from fedsmoo.experiment.sweep import run_name
from fedsmoo.experiment.work import Orders, state, work

TINY = Config(
    algorithm="scaffold", model="softmax", rounds=3, local_steps=1, clients=6, cohort=2, engine="batched", device="cpu"
)


def error_in(folder: Path) -> str:
    return json.loads((folder / FAILED).read_text())["error"]


@pytest.mark.parametrize("pack", [1, 2])
def test_a_run_that_cannot_begin_does_not_stop_the_others(pack: int, tmp_path: Path) -> None:
    bad, good = TINY.replace(cohort=20), TINY.replace(seed=1)
    said: list[str] = []
    orders = Orders(pack=pack, failed=lambda c, p, why: said.append(why))
    report = work([bad, good], tmp_path, orders)
    assert report.finished == [tmp_path / run_name(good)]
    assert list(report.failed) == [tmp_path / run_name(bad)]
    assert said == [error_in(tmp_path / run_name(bad))]
    assert "a cohort of 20 out of 6 clients" in said[0]
    work([bad, good], tmp_path, orders)
    assert len(said) == 1
    work([bad, good], tmp_path, Orders(retry=True, failed=lambda c, p, why: said.append(why)))
    assert len(said) == 2


def test_what_failed_to_begin_begins_when_the_reason_is_gone(tmp_path: Path) -> None:
    config = TINY.replace(split=str(tmp_path / "absent.json"))
    root = tmp_path / "runs"
    assert "no such file" in next(iter(work([config], root, Orders()).failed.values()))
    folder = root / run_name(config)
    good = TINY.replace(seed=3)
    folder.rename(root / run_name(good))  # as if the file had come back
    work([good], root, Orders())
    assert state(root / run_name(good)) == "failed"  # not without being asked
    assert work([good], root, Orders(retry=True)).finished == [root / run_name(good)]
    assert not (root / run_name(good) / FAILED).exists()


@pytest.mark.parametrize("pack", [1, 2])
def test_a_damaged_checkpoint_does_not_stop_the_others(pack: int, tmp_path: Path) -> None:
    bad, good = TINY, TINY.replace(seed=1)
    rounds: list[int] = []
    stop = lambda: len(rounds) > 1  # noqa: E731
    work([bad], tmp_path, Orders(watch=lambda c, r: rounds.append(r.round), stop=stop, every=1))
    manifests = list((tmp_path / run_name(bad) / CHECKPOINT).glob("*.json"))
    assert manifests
    for path in manifests:
        path.write_text("x")
    report = work([bad, good], tmp_path, Orders(pack=pack))
    assert report.finished == [tmp_path / run_name(good)]
    assert "no checkpoint of" in error_in(tmp_path / run_name(bad))
    assert not (tmp_path / run_name(bad) / SUMMARY).exists()
