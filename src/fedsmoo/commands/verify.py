"""``fedsmoo verify``: whether the files of runs are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import counted
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import lines, text


def verify(folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]) -> None:
    from fedsmoo.runs.storage import verify as library

    damaged = False
    for folder in folders:
        try:
            found = library.verify(folder)
        except FedsmooError as e:  # no run, which says nothing of the others
            print(lines(e))
            damaged = True
            continue
        damaged = damaged or bool(found.damaged)
        said = f"{folder}: {counted(found.checked, 'file')} sound, {len(found.damaged)} damaged; {found.usable}"
        print(lines("\n".join([said, *(text(line) for line in found.damaged)])))
    if damaged:
        raise typer.Exit(1)
