"""What all commands share: arguments that are explained in ``--help``, and PyTorch imported before work begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from typer.core import TyperCommand
from typer.utils import get_params_from_function

from fedsmoo.commands.interrupt import nothing_to_save
from fedsmoo.commands.options import SWITCHES, off_of, with_switches
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
        """Parse a command line, once its switches have a value."""
        return super().parse_args(ctx, with_switches(args) if self.switches else args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the help. There the words beside a switch name its opposite: a column of them would squeeze these."""
        beside = [switch.secondary_opts for switch in self.switches]
        for switch in self.switches:
            switch.secondary_opts = []
        super().format_help(ctx, formatter)
        for switch, words in zip(self.switches, beside, strict=True):
            switch.secondary_opts = words


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
