"""``fedsmoo verify``: whether the files of runs and federations are as they were written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsmoo.commands.console import counted
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import lines, text

if TYPE_CHECKING:
    from fedsmoo.deploy.store import State


def verify(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Run folders, or folders of a federation's server or of its clients."),
    ],
) -> None:
    from fedsmoo.deploy import store
    from fedsmoo.runs.storage import verify as library

    damaged = False
    for folder in folders:
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
        said = f"{folder}: {counted(found.checked, 'file')} sound, {len(found.damaged)} damaged; {found.usable}"
        print(lines("\n".join([said, *(text(line) for line in found.damaged)])))
    if damaged:
        raise typer.Exit(1)


def print_states(folder: Path, states: Sequence[State]) -> bool:
    """Say of every state of a federation whether it can be used; returns whether all can."""
    sound = [state for state in states if state.damage is None]
    best = f"the newest that can be used is after round {sound[0].rounds}" if sound else "no state can be used"
    said = f"{folder}: {counted(len(sound), 'file')} sound, {len(states) - len(sound)} damaged; {best}"
    print(lines("\n".join([said, *(text(state) for state in states)])))
    return len(sound) == len(states)
