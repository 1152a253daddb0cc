"""A gate before a Flower server: TLS on the outside, and only what nodes need gets through.

Flower serves nodes (``/v1/fleet``), its control commands (``/v1/control``) and its own programs (``/v1/runtime``) on
one port. Whoever reaches the control commands can submit code that every node runs. So the server itself listens on
127.0.0.1 only, and this gate is what the network sees.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError

OPEN = b"/v1/fleet/"
PORTS = 65535
# Headers that belong to one connection and are not passed on.
HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization", "host"}


def allowed(path: bytes) -> bool:
    """Whether a request path goes to nodes' own interface, with nothing in it that a server might read differently.

    >>> allowed(b"/v1/fleet/pull-messages"), allowed(b"/v1/control/start-run"), allowed(b"/v1/fleet/../control/x")
    (True, False, False)
    """
    return path.startswith(OPEN) and not any(odd in path for odd in (b"..", b"//", b"%", b"\\", b";"))


def gate_app(to: str, ca: Path) -> Any:
    """Return the gate as a web application; ``to`` is the server's own address, such as ``127.0.0.1:8000``."""
    try:
        import httpx
        from starlette.applications import Starlette
        from starlette.background import BackgroundTask
        from starlette.responses import PlainTextResponse, StreamingResponse
        from starlette.routing import Route
    except ImportError as e:
        raise FedsmooError(f"the gate needs Flower's own dependencies: pip install 'fedsmoo[flower]' ({e})") from e
    import ssl

    context = ssl.create_default_context(cafile=str(ca))
    client = httpx.AsyncClient(base_url=f"https://{to}", verify=context, timeout=600, trust_env=False)

    async def forward(request: Any) -> Any:
        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        if not allowed(raw):
            return PlainTextResponse("only nodes may come through here\n", status_code=403)
        headers = [(k, v) for k, v in request.headers.items() if k not in HOP]
        url = httpx.URL(path=request.scope["path"], query=request.scope["query_string"])
        ask = client.build_request(request.method, url, headers=headers, content=request.stream())
        try:
            reply = await client.send(ask, stream=True)
        except httpx.HTTPError as e:
            return PlainTextResponse(f"the server does not answer: {type(e).__name__}\n", status_code=502)
        kept = {k: v for k, v in reply.headers.items() if k not in HOP}
        return StreamingResponse(
            reply.aiter_raw(), status_code=reply.status_code, headers=kept, background=BackgroundTask(reply.aclose)
        )

    methods = ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"]
    return Starlette(routes=[Route("/{path:path}", forward, methods=methods)])


def refuse_address(port: int, to: str) -> None:
    """Refuse a port that is none, and a server that is no address."""
    server, _, number = to.rpartition(":")
    if not server or "/" in to or not number.isascii() or not number.isdigit() or not 0 < int(number) <= PORTS:
        raise FedsmooError(f"--to {to!r} is not an address with a port, such as 127.0.0.1:8000")
    if not 0 < port <= PORTS:
        raise FedsmooError(f"--port is {port}, but must be between 1 and {PORTS}")


def refuse_busy(host: str, port: int) -> None:
    """Refuse what cannot be listened on: a port of somebody else's, an address of another machine."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(place, family=kind):
            pass
    except OSError as e:
        why = str(e.strerror).partition(" (")[0]
        raise FedsmooError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from e


def serve_gate(host: str, port: int, to: str, certificates: Path) -> None:
    """Run the gate until it is stopped."""
    refuse_address(port, to)
    files = {n: certificates / n for n in ("ca.crt", "server.crt", "server.key")}
    for path in files.values():
        if not path.is_file():
            raise FedsmooError(f"there is no {path}: make certificates with fedsmoo deploy keys")
    refuse_busy(host, port)
    app = gate_app(to, files["ca.crt"])
    import uvicorn

    uvicorn.run(
        app, host=host, port=port, log_level="warning", server_header=False,
        ssl_certfile=str(files["server.crt"]), ssl_keyfile=str(files["server.key"]),
    )  # fmt: skip
