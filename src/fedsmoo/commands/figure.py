"""``fedsmoo figure``: pictures of runs for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import console
from fedsmoo.commands.report import found
from fedsmoo.core.errors import FedsmooError
from fedsmoo.report.figures import FIGURES, Look, write_figure
from fedsmoo.report.gather import gather

Name = Annotated[str, typer.Argument(help=f"One of: {', '.join(FIGURES)}.", show_default=False)]
More = Annotated[list[Path] | None, typer.Argument(help="Run folders, or folders that hold some.", show_default=False)]


def figure(
    name: Name,
    more: More = None,
    runs: Annotated[list[Path] | None, typer.Option(help="The same, for those who like to say so.")] = None,
    out: Annotated[Path | None, typer.Option(help="A .pdf, .svg or .png file (default: NAME.pdf).")] = None,
    width: Annotated[str, typer.Option(help="column or page.")] = "column",
    smooth: Annotated[int, typer.Option(help="Window of a Hanning filter, in rounds; 1: none.")] = 1,
    axis: Annotated[str, typer.Option(help="Horizontal axis: rounds, bytes or seconds.")] = "rounds",
    over: Annotated[str | None, typer.Option(help="sensitivity: the setting on the axis, such as algorithm.r.")] = None,
    focus: Annotated[str | None, typer.Option(help="landscape: the run whose grid lies over the others.")] = None,
) -> None:
    paths = [*(runs or []), *(more or [])]
    if not paths:
        raise FedsmooError(f"figure {name}: say of which runs: fedsmoo figure {name} RUN ...")
    path = write_figure(name, gather(found(paths)), out or Path(f"{name}.pdf"), Look(width, smooth, over, focus, axis))
    console().print(str(path), soft_wrap=True, markup=False)
