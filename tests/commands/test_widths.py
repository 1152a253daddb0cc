"""Terminals of any width: what does not fit goes on below its beginning, and paths are cut where runs do not differ."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedsmoo.commands.console import print_hanging, print_paragraph
from fedsmoo.commands.describe import list_things, show
from fedsmoo.commands.screen import (
    cut_middle,
    fold_columns,
    line_with_name,
    print_table,
    widths_of,
    with_short_names,
    wrap_words,
)
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
        print_hanging(each, "  [bold]name[/bold]  ", words)
        print_paragraph(each, "a much longer sentence that is broken between its words")
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


WIDE = Table(
    "2 runs",
    ["path", "algorithm", "local_epochs", "accuracy"],
    [["sweep/fedavg-digits-dirichlet-0.1-4of8-softmax-seed0-a5cbcaca", "fedavg", "5", "15.60%"], ["a", "", "", "16%"]],
    ["a note that is much longer than the terminal is wide"],
)


def test_names_are_cut_and_columns_go_on_below_where_a_terminal_is_too_narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedsmoo.commands.screen.console", lambda: screen(40))
    print_table(WIDE, whole="--json")
    assert (
        capsys.readouterr().out
        == """\
2 runs
path                      algorithm
------------------------  ---------
sweep/f…x-seed0-a5cbcaca     fedavg
a

path                      local_epochs
------------------------  ------------
sweep/f…x-seed0-a5cbcaca             5
a

path                      accuracy
------------------------  --------
sweep/f…x-seed0-a5cbcaca    15.60%
a                              16%
"""
    )


def test_a_table_that_fits_is_left_alone_and_so_is_one_that_is_piped() -> None:
    first, *rest = widths_of(WIDE)
    whole = first + sum(n + 2 for n in rest)
    for width in (whole, whole - 1):
        (part, *more) = fold_columns(WIDE, width)
        assert (part.header == WIDE.header) == (not more) == (width == whole)
        assert (with_short_names(WIDE, width) is WIDE) == (width == whole)
    cut = with_short_names(WIDE, 80)
    assert sum(n + 2 for n in widths_of(cut)) - 2 == 80
    assert cut.rows[0][0].endswith("-seed0-a5cbcaca")
    assert cut.rows[1] == WIDE.rows[1]
    assert [part.header[1:] for part in fold_columns(WIDE, 90)] == [["algorithm", "local_epochs"], ["accuracy"]]
    assert [part.header for part in fold_columns(Table("", ["path"], []), 2)] == [["path"]]
    assert cut_middle("short", 24) == "short"


def test_lines_on_runs_are_cut_in_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = WIDE.rows[0][0]
    assert line_with_name("[1/2] ", name, " (mine)") == f"[1/2] {name} (mine)"
    monkeypatch.setattr("rich.console.Console", lambda stderr: screen(50))
    cut = line_with_name("[1/2] ", name, " (mine)")
    assert len(cut) == 50
    assert cut.startswith("[1/2] sweep/fed")
    assert cut.endswith("-seed0-a5cbcaca (mine)")


def test_an_error_is_one_line_where_nobody_looks_and_breaks_between_words_at_a_width() -> None:
    said = "fedsmoo: unknown algorithm 'fedsmo'\n  Known: multi-krum, fedlesam-d"
    assert wrap_words(said) == said
    assert wrap_words(said, 24).splitlines() == [
        "fedsmoo: unknown",
        "algorithm 'fedsmo'",
        "  Known: multi-krum,",
        "fedlesam-d",
    ]
