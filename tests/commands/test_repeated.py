"""Flags that are given twice with different values: refused by every command, unless they are meant to repeat."""

from __future__ import annotations

from typing import Any

import click
import pytest

from fedsmoo.cli import tree

from .conftest import TINY, Call


def commands(group: Any, before: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """All commands, by the words that call them."""
    found = []
    for name, command in group.commands.items():
        words = (*before, name)
        found += commands(command, words) if hasattr(command, "commands") else [(words, command)]
    return found


@pytest.mark.parametrize(("words", "command"), commands(tree()), ids=lambda v: "-".join(v) if type(v) is tuple else "")
def test_every_flag_is_refused_with_two_values(call: Call, words: tuple[str, ...], command: click.Command) -> None:
    options = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag and not p.multiple]
    for flag in (option.opts[0] for option in options):
        answer = call(*words, f"{flag}=true", f"{flag}=false")
        assert answer.code == 2
        assert answer.err == f"fedsmoo: {flag} is given twice, as true and as false: choose one\n"


def test_the_same_value_twice_is_one_value_and_what_may_repeat_repeats(call: Call) -> None:
    assert call("run", *TINY, "--lr", "0.1", "--lr", "0.1", "--set", "seed=1", "--set", "u=0.2").code == 0
    answer = call("run", *TINY, "--lr", "0.1", "--lr=0.2")
    assert answer.err == "fedsmoo: --lr is given twice, as 0.1 and as 0.2: choose one\n"
    answer = call("run", *TINY, "--weighted", "--no-weighted")
    assert answer.err == "fedsmoo: --weighted is given twice, as true and as false: choose one\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedprox:mu=0.1", "--set", "fedprox.mu=0.2"], "mu of fedprox is given twice, as 0.1 and as --set"),
        (["fedprox", "--set", "fedprox.mu=1", "--set", "fedprox.mu=2"], "mu of fedprox is given twice, as 1 and"),
    ],
)  # fmt: skip
def test_options_of_one_method_of_a_comparison(call: Call, words: list[str], message: str) -> None:
    """The first row would be called mu=0.1 and be trained with 0.2."""
    answer = call("compare", *words, *TINY)
    assert answer.code == 2
    assert message in answer.err
