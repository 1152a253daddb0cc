"""What all commands share: arguments that are explained in ``--help``, and PyTorch imported before work begins."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import click
from typer.core import TyperCommand, TyperGroup
from typer.utils import get_params_from_function

from fedsmoo.commands.interrupt import nothing_to_save
from fedsmoo.commands.options import SWITCHES, off_of, with_switches
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import judged, refuse_all


class Command(TyperCommand):
    """A command whose ``--help`` explains its arguments: from 8.5 on Click forgets what Typer was told of them.

    Settings that are true or false are switches, ``--weighted`` and ``--no-weighted``, and take a value as others do.
    """

    def __init__(self, name: str | None, *, callback: Callable[..., Any] | None = None, **more: Any) -> None:
        super().__init__(name, callback=callback, **more)
        self.switches: list[click.Parameter] = []
        silent = [p for p in self.params if isinstance(p, click.Argument) and not getattr(p, "help", None)]
        told = get_params_from_function(callback) if callback is not None and silent else {}
        for argument in silent:
            argument.help = getattr(told[str(argument.name)].default, "help", None)  # type: ignore[attr-defined]
        for parameter in self.params:
            if not SWITCHES.isdisjoint(parameter.opts) and not getattr(parameter, "is_flag", False):
                self.switches.append(parameter)
                parameter.secondary_opts = [off_of(parameter.opts[0])]  # for completion: the parser never sees it

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a command line, once its switches have a value; refuse what is given twice with different values."""
        words = with_switches(args) if self.switches else list(args)
        if not ctx.resilient_parsing:  # of a shell that completes a line
            self.refuse_twice(ctx, words)
        return super().parse_args(ctx, words)

    def refuse_twice(self, ctx: click.Context, words: list[str]) -> None:
        """Refuse an option that says two things and may not be repeated: Click takes the last one without a word."""
        once = [p for p in self.params if isinstance(p, click.Option) and not p.multiple and not p.count]
        collecting, ours = copy.copy(self), [copy.copy(p) for p in once]
        for option in ours:
            option.multiple = True
        collecting.params = [*ours, *(p for p in self.params if p not in once)]
        found, _, _ = collecting.make_parser(ctx).parse_args(args=list(words))
        for option in ours:
            values = list(dict.fromkeys(map(str, found.get(option.name) or ())))
            if len(values) > 1 and not option.is_flag:
                given = f"{option.opts[0]} is given twice, as {values[0]} and as {values[1]}"
                raise FedsmooError(f"{given}: choose one")
            if len(values) > 1:
                raise FedsmooError(f"{option.opts[0]} and {option.secondary_opts[0]} say opposite things: choose one")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the help. There the words beside a switch name its opposite: a column of them would squeeze these."""
        beside = [switch.secondary_opts for switch in self.switches]
        for switch in self.switches:
            switch.secondary_opts = []
        super().format_help(ctx, formatter)
        for switch, words in zip(self.switches, beside, strict=True):
            switch.secondary_opts = words


class Group(TyperGroup):
    """Commands of which an unknown one is answered with the nearest, once: both Typer and Click suggest some."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            if "Did you mean" in e.message and hasattr(e, "possibilities"):
                e.possibilities = None
            raise


class TorchCommand(Command):
    """A command that needs PyTorch, which takes seconds to import: Ctrl-C meanwhile ends the program without a word."""

    def invoke(self, ctx: click.Context) -> Any:
        """Import PyTorch, then do what the command does."""
        with nothing_to_save():
            import torch  # noqa: F401
        return super().invoke(ctx)


class ReadingCommand(TorchCommand):
    """A command that only reads what others may have made: it imports no file that they name."""

    def invoke(self, ctx: click.Context) -> Any:
        """Do what the command does, without code of anybody's own."""
        with judged(refuse_all):
            return super().invoke(ctx)
