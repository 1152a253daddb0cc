"""Start the gate: what it needs is checked before it listens, and what is wrong said in one line."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path

from fedsmoo.core import FedsmooError

PORTS = 65535
WAITING = 1024  # connections that the system holds until the gate accepts them


def refuse_address(port: int, to: str) -> None:
    """Refuse a port that is none, and a server that is no address."""
    server, _, number = to.rpartition(":")
    if not server or "/" in to or not number.isascii() or not number.isdigit() or not 0 < int(number) <= PORTS:
        raise FedsmooError(f"--to {to!r} is not an address with a port, such as 127.0.0.1:8000")
    if not 0 < port <= PORTS:
        raise FedsmooError(f"--port is {port}, but must be between 1 and {PORTS}")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; refuses a port of somebody else's and an address of another machine."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place, family=kind, backlog=WAITING)
    except OSError as e:
        why = str(e.strerror).partition(" (")[0]
        raise FedsmooError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from e


def certificate_files(folder: Path) -> list[Path]:
    """Return the authority's certificate, the server's and its key; refuses a folder without them."""
    files = [folder / name for name in ("ca.crt", "server.crt", "server.key")]
    for path in files:
        if not path.is_file():
            raise FedsmooError(f"there is no {path}: make certificates with fedsmoo deploy keys")
    return files


def contexts(files: list[Path]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS for the outside, with the server's certificate, and for the inside, which trusts the authority."""
    ca, certificate, key = files
    try:
        outside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        outside.load_cert_chain(certificate, key)
        return outside, ssl.create_default_context(cafile=str(ca))
    except (ssl.SSLError, OSError) as e:
        raise FedsmooError(f"the certificates in {ca.parent} cannot be used ({e}): make new ones") from e


def serve_gate(host: str, port: int, to: str, certificates: Path) -> None:
    """Run the gate until it is stopped."""
    refuse_address(port, to)
    try:
        from fedsmoo.deploy.access.gate import Gate, run_gate
    except ImportError as e:
        raise FedsmooError(f"the gate needs Flower's own dependencies: pip install 'fedsmoo[flower]' ({e})") from e
    files = certificate_files(certificates)
    with listen(host, port) as listening:
        outside, inside = contexts(files)
        more_files()
        asyncio.run(run_gate(listening, partial(Gate, to, outside, inside)))


def more_files() -> None:
    """Let this process have as many connections as the system allows it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
