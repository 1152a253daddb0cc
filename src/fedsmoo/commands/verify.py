"""``fedsmoo verify``: whether the files of runs and federations are as they were written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsmoo.commands.console import console, counted, print_paragraph
from fedsmoo.commands.screen import next_step
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import lines, text

if TYPE_CHECKING:
    from fedsmoo.deploy.store import State


def verify(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Folders of or with runs, or of a federation's server or clients."),
    ],
) -> None:
    from fedsmoo.deploy import store
    from fedsmoo.runs.storage import verify as library

    damaged, whole = False, []
    for folder in [found for given in folders for found in folders_to_verify(given)]:
        if store.is_state_folder(folder):
            damaged = not print_states(folder, store.verify(folder)) or damaged
            continue
        try:
            found = library.verify(folder)
        except FedsmooError as e:  # no run, which says nothing of the others
            print(lines(e))
            damaged = True
            continue
        damaged = damaged or bool(found.damaged)
        whole += [folder] if found.finished else []
        said = f"{folder}: {counted(found.checked, 'file')} sound, {len(found.damaged)} damaged; {found.usable}"
        for line in lines("\n".join([said, *(text(line) for line in found.damaged)])).split("\n"):
            print_paragraph(console(), line)
    if damaged:
        raise typer.Exit(1)
    if whole:
        next_step("fedsmoo report", *folders)


def folders_to_verify(folder: Path) -> list[Path]:
    """Return the run folders in a folder that is none itself; where there are none, the folder."""
    from fedsmoo.deploy.store import is_state_folder
    from fedsmoo.runs.storage.walk import find_runs

    return [folder] if is_state_folder(folder) else find_runs([folder], missing_ok=True) or [folder]


def print_states(folder: Path, states: Sequence[State]) -> bool:
    """Say of every state of a federation whether it can be used; returns whether all can."""
    sound = [state for state in states if state.damage is None]
    best = f"the newest that can be used is after round {sound[0].rounds}" if sound else "no state can be used"
    said = f"{folder}: {counted(len(sound), 'file')} sound, {len(states) - len(sound)} damaged; {best}"
    print(lines("\n".join([said, *(text(state) for state in states)])))
    return len(sound) == len(states)
