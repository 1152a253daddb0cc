"""``--help``: every command, every default, every word to choose from, at the widths that terminals have."""

from __future__ import annotations

import re

import click
import pytest
import typer

from fedsmoo.cli import app
from fedsmoo.commands.options import SWITCHES, flag_of, with_switches
from fedsmoo.pages.figures import FIGURES
from fedsmoo.runs.config import FIELDS
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.sweeps.bases import EXPERIMENTS

from .conftest import TINY, Call


def every(group: click.Command, name: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Every command that does something, by its words."""
    if not isinstance(group, click.Group):
        return {name: group}
    return {k: v for n, c in group.commands.items() for k, v in every(c, (*name, n)).items()}


COMMANDS = every(typer.main.get_command(app))


def words(text: str) -> str:
    """The words of a help text in order, without its boxes and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_says_its_default_and_nothing_is_cut(
    command: tuple[str, ...], width: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    answer = call(*command, "--help")
    assert answer.code == 0
    assert "…" not in answer.out
    assert all(len(line) <= int(width) for line in answer.out.splitlines())
    out = words(answer.out)
    for option in COMMANDS[command].params:
        if isinstance(option, click.Option) and option.default not in (None, False, (), []):
            assert f"[default: {option.default}" in out, option.name


def test_every_setting_says_its_default_and_what_it_may_be(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = words(call("run", "--help").out)
    flags = [n for n in FIELDS if not n.endswith("_options")]
    assert len(flags) > 30
    for name in flags:
        spec, flag = FIELDS[name], f"--{name.replace('_', '-')}"
        told = re.search(rf"(?<!no){flag} (?!not\b).*?(?= --\w[\w-]* (?!not\b|in\b)|$)", out)
        assert told is not None, name
        if spec.metadata["choices"]:
            assert f"({' | '.join(spec.metadata['choices'])})" in told[0]
        if spec.default is not None:
            assert f"[default: {str(spec.default).lower()}]" in told[0].lower()
        if flag in SWITCHES:
            assert f"(or --no-{flag[2:]})" in out


def test_figures_and_tables_are_listed_by_name(call: Call) -> None:
    for command, names in (("figure", FIGURES), ("table", EXPERIMENTS)):
        out = words(call(command, "--help").out)
        assert all(f"{name}: {about}" in out for name, about in names.items())


@pytest.mark.parametrize(
    ("typed", "weighted"),
    [
        (["--weighted"], True),
        (["--no-weighted"], False),
        (["--weighted", "true"], True),
        (["--weighted", "no"], False),
        (["--weighted=off"], False),
    ],
)
def test_a_switch_takes_a_value_or_none(typed: list[str], weighted: bool, call: Call, tmp_path) -> None:
    (tmp_path / "mine.toml").write_text("weighted = true\nrounds = 1\n")
    answer = call("run", *typed, "mine.toml", "--algorithm", "fedavg", *TINY, "--out", "here")
    assert answer.code == 0, answer.err
    assert read_config(tmp_path / "here").weighted is weighted


def test_only_a_truth_value_is_the_value_of_a_switch() -> None:
    assert with_switches(["--exact", "a.toml", "--lr", "--weighted"]) == [
        "--exact=true", "a.toml", "--lr", "--weighted=true"
    ]  # fmt: skip
    assert with_switches(["--augment", "none"]) == ["--augment=none"]
    assert with_switches(["--", "--weighted"]) == ["--", "--weighted"]
    assert with_switches(["--no-wait", "--weighted=perhaps"]) == ["--no-wait", "--weighted=perhaps"]


def test_every_word_that_a_setting_may_be_can_be_typed() -> None:
    """Also where it is the name of a switch: ``--sampling weighted``, ``--wire exact``."""
    typed = [[flag_of(n), word] for n, spec in FIELDS.items() for word in spec.metadata["choices"]]
    assert ["--sampling", "weighted"] in typed
    assert [with_switches(pair) for pair in typed] == typed
