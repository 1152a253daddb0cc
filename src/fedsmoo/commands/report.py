"""``fedsmoo report``: run folders as one page that opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fedsmoo
from fedsmoo.commands.console import console, counted
from fedsmoo.runs.storage.walk import require_runs

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.", show_default=False)]


def report(runs: Runs, out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html")) -> None:
    folders = require_runs(runs)
    path = fedsmoo.report(folders, out)
    said = f"{counted(len(folders), 'run')}: {path}\nnext: open it in a browser"
    console().print(said, soft_wrap=True, markup=False)
