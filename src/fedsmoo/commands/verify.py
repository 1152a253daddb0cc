"""``fedsmoo verify``: whether the files of runs are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import counted


def verify(folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]) -> None:
    from fedsmoo.runs.storage import verify as library

    damaged = False
    for folder in folders:
        found = library.verify(folder)
        damaged = damaged or bool(found.damaged)
        print(f"{folder}: {counted(found.checked, 'file')} sound, {len(found.damaged)} damaged; {found.usable}")
        for line in found.damaged:
            print(f"  {line}")
    if damaged:
        raise typer.Exit(1)
