"""``fedsmoo export``: a finished model for others, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import console


def export(
    run: Annotated[Path, typer.Argument(help="A run folder that is finished.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The new folder: weights, model card, settings and numbers.")],
) -> None:
    from fedsmoo.runs.results.card import export_model

    card = export_model(run, to)
    console().print(f"{card}\nnext: read it, and publish {to}", soft_wrap=True, markup=False)
