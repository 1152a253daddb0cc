"""``fedsmoo report``: run folders as one page that opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fedsmoo
from fedsmoo.commands.console import console, counted
from fedsmoo.commands.screen import next_step

Runs = Annotated[
    list[Path], typer.Argument(help="Run folders, result files, or folders that hold some.", show_default=False)
]


def report(runs: Runs, out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html")) -> None:
    from fedsmoo.pages.report import found_in

    folders, files = found_in(runs)
    path = fedsmoo.report([*folders, *files], out)
    said = f"{counted(len(folders) + len(files), 'run')}: {path}"
    console().print(said, soft_wrap=True, markup=False)
    next_step("python3 -m webbrowser", path)
