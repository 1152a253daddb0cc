"""``fedsmoo report``: run folders as one page that opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import console, counted
from fedsmoo.core.errors import FedsmooError
from fedsmoo.pages.gather import find_runs
from fedsmoo.pages.page import write_page

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.", show_default=False)]


def report(runs: Runs, out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html")) -> None:
    folders = found(runs)
    path = write_page(folders, out)
    console().print(f"{counted(len(folders), 'run')}: {path}", soft_wrap=True, markup=False)


def found(paths: list[Path]) -> list[Path]:
    """The run folders at or below some folders; none at all is an error."""
    folders = find_runs(paths)
    if not folders:
        raise FedsmooError(f"no run folder in {', '.join(map(str, paths))}: a run folder holds a config.toml")
    return folders
