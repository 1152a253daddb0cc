"""Slips in Python: one line that says what was wrong, in words of Python and not of the command line."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedsmoo
from fedsmoo import Config, FedsmooError
from fedsmoo.core.errors import FedsmooWarning

S = {"rounds": 3, "clients": 5, "cohort": 2, "model": "softmax", "device": "cpu"}
SLIPS: dict[str, tuple[Callable[[], Any], str]] = {
    "out": (lambda: fedsmoo.run(S, 7), "out is 7, but must be a path, such as 'runs/a'"),
    "an empty out": (lambda: fedsmoo.run(S, ""), "out is '', but must be a path"),
    "track": (lambda: fedsmoo.run(track=3), "track is 3, but must be a list, such as ['tensorboard']"),
    "resume": (lambda: fedsmoo.resume(None), "folder is None, but must be a path"),
    "report": (lambda: fedsmoo.report(3), "a run folder is 3, but must be a path"),
    "a report's file": (lambda: fedsmoo.report(".", 3), "out is 3, but must be a path"),
    "one of several": (lambda: fedsmoo.report(["x", 3]), "a run folder is 3, but must be a path"),
    "analyse": (lambda: fedsmoo.analyse("sharpness", 3), "a run folder is 3, but must be a path"),
    "a sweep's folder": (lambda: fedsmoo.sweep(S, 3), "out is 3, but must be a path"),
    "a comparison's folder": (lambda: fedsmoo.compare("fedavg", out=3), "out is 3, but must be a path"),
    "methods": (lambda: fedsmoo.compare(3), "algorithms is 3, but must name methods, such as 'fedavg,fedsmoo'"),
    "seeds": (lambda: fedsmoo.compare("fedavg", seeds="x"), "seeds 'x' must be whole numbers separated by commas"),
    "a seed or a count": (
        lambda: fedsmoo.compare("fedavg", seeds=3),
        "seeds is 3: write [3] for this seed, or range(3) for so many",
    ),
    "of a table, too": (lambda: fedsmoo.paper.table("accuracy", seeds=3), "seeds is 3: write [3] for this seed"),
    "a hyper-parameter": (lambda: fedsmoo.FedSMOO(q=1), "unknown option of FedSMOO 'q'; known: beta, correct,"),
    "a setting": (lambda: Config(roundz=1), "unknown option of Config 'roundz': did you mean 'rounds'?"),
    "a table's option": (
        lambda: fedsmoo.paper.table("accuracy", colums="x"),
        "unknown option of a table 'colums': did you mean 'columns'?",
    ),
    "documents": (lambda: fedsmoo.paper.update(3), "update: which files?"),
    "results": (lambda: fedsmoo.paper.update(["x"], "none"), "results: there is no folder none"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_one_line(slip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fedsmoo_call, says = SLIPS[slip]
    if slip == "a report's file":
        for name in ("config.toml", "metrics.jsonl"):  # which make a folder a run's
            (tmp_path / name).touch()
    with pytest.raises(FedsmooError) as caught:
        fedsmoo_call()
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert " --" not in str(caught.value).replace("'fedsmoo table --update README.md'", "")
    assert not (tmp_path / "runs").exists()


def test_a_used_folder_is_refused_in_words_of_python(tmp_path: Path) -> None:
    fedsmoo.run(S, tmp_path / "a")
    with pytest.raises(FedsmooError, match="already holds a run: choose another folder, or go on with"):
        fedsmoo.run(S, tmp_path / "a")


@pytest.mark.parametrize("many", ["sweep", "compare"])
def test_ctrl_c_lets_the_round_end_and_the_same_call_goes_on(many: str, tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(config: Config, record: Any) -> None:
        seen.append(record.round)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def call(**more: Any) -> Any:
        if many == "sweep":
            return fedsmoo.sweep({**S, "seed": [0, 1]}, tmp_path / "out", **more)
        return fedsmoo.compare("fedavg,fedsam", config=S, out=tmp_path / "out", **more)

    if many == "sweep":
        with pytest.raises(KeyboardInterrupt):
            call(watch=watch)
    else:
        with pytest.warns(FedsmooWarning, match="interrupted: 2 of 2 runs are left; the same call goes on with them"):
            part = call(watch=watch)
        assert [folder.name for folder in part.outcome.left] == ["fedavg-seed0", "fedsam-seed0"]
    assert seen == [1, 2]
    again: list[int] = []
    done = call(watch=lambda config, record: again.append(record.round))
    assert again == [3, 1, 2, 3]  # from where the first run was saved
    assert len(getattr(done, "outcome", done).finished) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
