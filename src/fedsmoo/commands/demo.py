"""``fedsmoo demo``: five methods on digits, who holds which class, and a page to look at, in one command."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import console
from fedsmoo.commands.screen import as_part_of_another, next_step
from fedsmoo.core.errors import FedsmooError

SPLIT = {"dataset": "digits", "partition": "dirichlet", "u": 0.1, "clients": 40}  # as in demo.toml


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the pictures and the page.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each run (default: 100).")] = None,
) -> None:
    from fedsmoo.commands.compare import carry_out_and_print
    from fedsmoo.engines.threads import fix_threads
    from fedsmoo.sweeps import METHODS
    from fedsmoo.sweeps.compare import open_comparison
    from fedsmoo.sweeps.methods import parse_methods

    fix_threads(1)  # models as small as these gain nothing from more
    flags = {} if rounds is None else {"rounds": rounds}
    with as_file(files("fedsmoo.commands") / "demo.toml") as settings:
        cells = open_comparison(parse_methods(METHODS), seeds, settings, out, flags)
    with as_part_of_another():  # packs of seeds take half the time, to the same bits
        carry_out_and_print(cells, out, pack=len({cell.config.seed for cell in cells.values()}))
        draw_split(out / "split.json")
    page = write_page(out)
    for line in ("", *say_where_to_look(out, page)):
        console().print(line, soft_wrap=True, markup=False)
    next_step("fedsmoo run --algorithm fedsmoo --dataset digits")


def draw_split(path: Path) -> None:
    """Write the division of the demo's first seed over its clients, once, and draw it."""
    from fedsmoo.commands.data import show, split

    if not path.exists():
        split(out=path, **SPLIT)  # type: ignore[arg-type]
    show(path)


def write_page(out: Path) -> Path | str:
    """Write the page of the demo's runs; returns its file, or a line about what is missing for it."""
    from fedsmoo.pages.report import report

    try:
        return report([out], out / "report.html")
    except FedsmooError as e:
        if "plotly" not in str(e).lower():
            raise
        return str(e)


def say_where_to_look(out: Path, page: Path | str) -> list[str]:
    """Say what there is to look at."""
    lines = [
        f"look at {out / 'curves.png'}: test accuracy over rounds",
        f"        {out / 'split-clients.png'}: who holds which class",
    ]
    return [*lines, f"        {page}: everything, in a browser" if isinstance(page, Path) else page]
