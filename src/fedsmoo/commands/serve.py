"""``fedsmoo serve``: the report page, live while runs go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import console
from fedsmoo.runs.storage.walk import find_runs

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders in which runs appear.", show_default=False)]


def serve(
    runs: Runs,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8642,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback let others read.")
    ] = "127.0.0.1",
) -> None:
    from fedsmoo.pages.server import PageServer, is_loopback

    find_runs(runs)  # a folder that is not there is said at once
    out = console()
    with PageServer(runs, host, port) as server:
        if not is_loopback(host):
            out.print(f"Note: {host} is not loopback: whoever reaches this machine can read the runs.", markup=False)
        out.print(f"{server.url}  (stop with Ctrl-C)", soft_wrap=True, markup=False)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            out.print("stopped")
