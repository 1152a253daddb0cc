"""Terminals of any width: what does not fit goes on below its beginning, and paths are cut where runs do not differ."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedsmoo.commands import runs
from fedsmoo.commands.console import hanging, paragraph
from fedsmoo.commands.describe import list_things, show
from fedsmoo.commands.runs import fitting, shortened
from fedsmoo.paper.render import Table


def screen(width: int, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)


def printed(out: Console) -> list[str]:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def test_words_hang_below_their_beginning_in_a_terminal_and_nowhere_else() -> None:
    words = "one two three four five six seven"
    out, pipe = screen(40), screen(40, terminal=False)
    for each in (out, pipe):
        hanging(each, "  [bold]name[/bold]  ", words)
        paragraph(each, "a much longer sentence that is broken between its words")
    assert printed(out) == [
        "  name  one two three four five six",
        "        seven",
        "a much longer sentence that is broken ",
        "between its words",
    ]
    assert printed(pipe) == [f"  name  {words}", "a much longer sentence that is broken between its words"]


@pytest.mark.parametrize("width", [80, 200])
def test_lists_and_methods_fit_any_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = screen(width)
    monkeypatch.setattr("fedsmoo.commands.describe.console", lambda: out)
    list_things()
    show("fedsmoo")
    lines = printed(out)
    assert max(map(len, lines)) <= width
    assert "                         tau^2." in lines or width == 200
    assert lines[-1] == "next  fedsmoo run --algorithm fedsmoo --dataset digits"


def test_paths_are_cut_only_where_a_terminal_is_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "sweep/fedavg-digits-dirichlet-0.1-4of8-softmax-seed0-a5cbcaca"
    table = Table("2 runs", ["path", "accuracy"], [[path, "15.60%"], ["a", "16%"]], ["note"])
    for width, terminal, cut in ((40, True, True), (80, True, False), (40, False, False)):
        monkeypatch.setattr(runs, "console", lambda w=width, t=terminal: screen(w, t))
        made = fitting(table)
        assert (made is not table) == cut
        if cut:
            assert max(len(row[0]) for row in made.rows) + 2 + len("accuracy") == width
            assert made.rows[0][0].endswith("-seed0-a5cbcaca")
            assert made.rows[1] == ["a", "16%"]
            assert "--json" in made.notes[-1]
    assert shortened("short", 24) == "short"
    assert fitting(Table("0 runs", ["path"], [])).rows == []
