"""How progress is shown where: terminals, notebooks, files and logs."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import fedsmoo
from fedsmoo import FedsmooError
from fedsmoo.runs.watch import display

QUICK: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 3, "local_steps": 1, "device": "cpu"}


def simulate(**more: Any) -> fedsmoo.Result:
    return fedsmoo.simulate("softmax", "digits", "fedavg", **QUICK, **more)


def test_without_a_terminal_nothing_is_printed_but_logs_may_be_turned_on(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    simulate()
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.INFO, "fedsmoo"):
        result = simulate()
    assert [r.getMessage().split(",")[0] for r in caplog.records if r.name == "fedsmoo"] == [
        f"FedAvg: round {k} of 3: accuracy {100 * r.test_accuracy:.2f}%"  # type: ignore[operator]
        for k, r in enumerate(result.history, 1)
    ]


def test_true_is_lines_there_and_false_is_silent_in_a_log_too(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    result = simulate(progress=True)
    printed = capfd.readouterr().err.splitlines()
    assert printed[-1].startswith(f"round 3 of 3: accuracy {result.accuracy:.2%}")
    with caplog.at_level(logging.INFO, "fedsmoo"):
        simulate(progress=False)
    assert not [r for r in caplog.records if r.name == "fedsmoo"]
    assert capfd.readouterr() == ("", "")


def test_auto_is_a_bar_in_a_terminal_and_a_widget_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert display.kind_of("auto") == display.kind_of(True) == "bar"
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert display.kind_of("auto") == display.kind_of(True) == "widget"
    del shell.kernel  # IPython in a terminal
    assert display.kind_of("auto") == "bar"
    assert display.kind_of("lines") == "lines"
    with pytest.raises(FedsmooError, match="did you mean 'bar'"):
        display.kind_of("bars")


def test_a_bar_counts_the_rounds_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    from rich.progress import Progress

    update = Progress.update

    def watching(self: Progress, task: Any, **given: Any) -> None:
        update(self, task, **given)
        seen.append((int(self.tasks[0].completed), str(self.tasks[0].fields["state"])))

    monkeypatch.setattr(Progress, "update", watching)
    result = simulate(progress="bar").continue_(1, progress="bar")
    assert [n for n, _ in seen] == [1, 2, 3, 4]
    assert seen[-1][1].startswith(f"accuracy {result.accuracy:.2%}")


def test_a_widget_shows_rounds_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    widgets = pytest.importorskip("ipywidgets")
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    with display.display("FedAvg", 3, progress="widget") as bar:
        for record in simulate(progress=False).history:
            bar.move(record)
        box = shown[0]
        assert isinstance(box, widgets.HBox)
        assert box.children[0].value == 3
        assert "3/3" in box.children[1].value
    assert box.comm is None  # closed
