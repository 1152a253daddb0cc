"""``fedsmoo deploy``: from nothing to a federation of real clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.command import Command, Group
from fedsmoo.commands.console import console

app = typer.Typer(
    cls=Group, help="A federation of real clients, by Flower: an app, keys, and a gate.", no_args_is_help=True
)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="A folder.", show_default=False)]


@app.command("init", cls=Command)
def init(
    folder: Dir,
    name: Annotated[str | None, typer.Option(help="Name of the federation (default: the folder's).")] = None,
    clients: Annotated[int, typer.Option(help="How many clients there will be.")] = 3,
    publisher: Annotated[
        str | None, typer.Option(help="Your account on Flower's hub, for an app to publish there (default: none).")
    ] = None,
) -> None:
    """Write a ready Flower app into a new folder."""
    from fedsmoo.deploy.app import write_app

    out = console()
    for path in write_app(folder, name or folder.resolve().name, clients, publisher):
        out.print(f"  {path}", soft_wrap=True)
    out.print("Put your data into [bold]federation/client.py[/bold]; settings are in [bold]pyproject.toml[/bold].")
    out.print(f"next: flwr app publish {folder}" if publisher else f"next: . {folder}/offline.sh", soft_wrap=True)


@app.command("keys", cls=Command)
def keys(
    folder: Dir,
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the server; may be repeated.")] = None,
    nodes: Annotated[int, typer.Option(help="How many nodes get a key pair.")] = 3,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 365,
) -> None:
    """Make certificates for the server and a key pair for every node."""
    from fedsmoo.deploy.access.keys import make_keys

    out = console()
    for path in make_keys(folder, host or ["127.0.0.1", "localhost"], nodes, days):
        out.print(f"  {path}", soft_wrap=True)
    out.print(
        "Keep [bold]server.key[/bold] on the server; give node i only [bold]ca.crt[/bold] and [bold]node-i[/bold]."
    )


@app.command("gate", cls=Command)
def gate(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8443,
    to: Annotated[str, typer.Option(help="The Flower server, which listens on this machine only.")] = "127.0.0.1:8000",
    certificates: Annotated[Path, typer.Option(help="Folder with ca.crt, server.crt and server.key.")] = Path(
        "certificates"
    ),
) -> None:
    """Let nodes through to the Flower server, and nobody else."""
    from fedsmoo.deploy.access.serve import serve_gate

    serve_gate(host, port, to, certificates)
