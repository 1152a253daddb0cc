"""``fedsmoo analyse``: measure finished runs; results are kept beside each run, where the report page finds them.

One command for each measurement, with a flag for each of its options: a new file in ``analysis/`` needs nothing here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

import fedsmoo
from fedsmoo.analysis.measurement import Measurement, OnSamples, measurements
from fedsmoo.commands.command import Group, TorchCommand
from fedsmoo.commands.console import console, table
from fedsmoo.commands.run import Trust
from fedsmoo.commands.screen import next_step

app = typer.Typer(
    cls=Group, help="Measure finished runs: flatness, landscapes, consistency, fairness.", no_args_is_help=True
)

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Precision = Annotated[str, typer.Option(help="Matrix products on a GPU: fp32, tf32 or bf16.")]


def command(cls: type[Measurement]) -> Callable[..., None]:
    """Make the command of a measurement: run folders, its options, and where to measure."""

    def measure(
        runs: list[Path], device: str = "auto", precision: str = "fp32", trust: bool = False, **options: Any
    ) -> None:
        found = fedsmoo.analyse(cls(**options), runs, device=device, precision=precision, trust=trust)
        for each in (each for each in found if not each.values):
            why = f": {cls.nothing.format(algorithm=each.run.config.algorithm)}" if cls.nothing else ""
            console().print(f"{each.run.name}: nothing to measure{why}", soft_wrap=True, markup=False)
        rows = [row for each in found for row in each.rows]
        if rows:
            console().print(table("", ["run", *cls.columns], rows))
            next_step("fedsmoo report", *runs)

    kind = inspect.Parameter
    parameters = [kind("runs", kind.POSITIONAL_OR_KEYWORD, annotation=Runs)]
    parameters += [flag(cls, field) for field in dataclasses.fields(cls)]
    parameters.append(kind("device", kind.KEYWORD_ONLY, default="auto", annotation=Device))
    if issubclass(cls, OnSamples):
        parameters.append(kind("precision", kind.KEYWORD_ONLY, default="fp32", annotation=Precision))
    parameters.append(kind("trust", kind.KEYWORD_ONLY, default=False, annotation=Trust))
    measure.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    measure.__annotations__ = {p.name: p.annotation for p in parameters}
    return measure


def flag(cls: type[Measurement], field: dataclasses.Field[Any]) -> inspect.Parameter:
    """Make the flag of an option."""
    text = field.metadata["help"]
    told = typer.Option(help=text[0].upper() + text[1:] + ".", show_default=field.default is not None)
    hint = get_type_hints(cls)[field.name]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[hint, told]
    )


for _name, _cls in measurements().items():
    app.command(_name, help=_cls.help, cls=TorchCommand)(command(_cls))
