"""``fedsmoo figure``: pictures of runs for a paper."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.commands.console import console
from fedsmoo.commands.screen import next_step
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import text
from fedsmoo.pages.figures import FIGURES, USED

Name = Annotated[
    str, typer.Argument(help="\n\n".join(f"{name}: {about}" for name, about in FIGURES.items()), show_default=False)
]
More = Annotated[
    list[Path] | None,
    typer.Argument(help="Run folders, result files (results/*.json), or folders that hold some.", show_default=False),
]
Where = Annotated[
    list[str] | None, typer.Option(help="Only runs with this setting, such as seed=0, or seed!=0; may be said again.")
]


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
    apart: Annotated[bool, typer.Option("--apart", help="landscape: side by side on the same axes.")] = False,
    where: Where = None,
) -> None:
    from fedsmoo.pages.figures.draw import Look, write_figure
    from fedsmoo.pages.figures.rounds import unmeasured
    from fedsmoo.pages.figures.sources import drawable, find

    paths = [*(runs or []), *(more or [])]
    if not paths:
        raise FedsmooError(f"figure {name}: say of which runs: fedsmoo figure {name} RUN ...")
    refuse_idle_flags(
        name, {"smooth": smooth != 1, "axis": axis != "rounds", "over": over, "focus": focus, "apart": apart}
    )
    sources = find(paths)
    if sources.others:
        sys.stderr.write(f"left out, no run in it: {text(', '.join(map(str, sources.others)))}\n")
    data = drawable(sources, where or ())
    unfinished = [run["name"] for run in data["runs"] if run.get("state", "finished") != "finished"]
    if name == "sensitivity" and unfinished:
        sys.stderr.write(f"left out, not finished: {', '.join(unfinished)}\n")
    path = write_figure(name, data, out or Path(f"{name}.pdf"), Look(width, smooth, over, focus, axis, apart))
    console().print(text(path), soft_wrap=True, markup=False)
    if missing := unmeasured(name, data["runs"]):
        sys.stderr.write(f"left out, it has measured nothing that is drawn: {', '.join(missing)}\n")
    next_step("fedsmoo report", *paths)


def refuse_idle_flags(name: str, given: Mapping[str, Any]) -> None:
    """Refuse flags that are of other figures: they would change nothing."""
    for flag, value in given.items():
        if value and name in FIGURES and name not in USED[flag]:
            raise FedsmooError(f"figure {name}: --{flag} is of other figures ({', '.join(USED[flag])}): leave it out")
